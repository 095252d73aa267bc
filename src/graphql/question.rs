//! Reads the types of a schema. Only an extension gets to see them, so a request carries a function to the extension.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_graphql::{Executor, Request, registry::Registry};

/// In the data of a request: a function that the extension calls with the schema's registry.
#[derive(Clone)]
pub(crate) struct Question(Arc<Mutex<Asked>>);

struct Asked {
    /// None once it has been called.
    look: Option<Box<Look>>,
    /// How many instances of the extension have seen it; more than one is a mistake of the application's.
    heard: usize,
}

type Look = dyn FnOnce(&Registry) + Send;

impl Question {
    /// Calls the function, unless another instance of the extension has.
    pub(crate) fn hear(&self, registry: &Registry) {
        let mut asked = self.lock();
        asked.heard += 1;
        if let Some(look) = asked.look.take() {
            look(registry);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Asked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls `look` with the registry of a schema. `Err`: why that was not possible.
pub(crate) async fn ask<T: Send + 'static>(
    schema: &impl Executor,
    look: impl FnOnce(&Registry) -> T + Send + 'static,
) -> Result<T, String> {
    let answer = Arc::new(Mutex::new(None));
    let told = Arc::clone(&answer);
    let look = move |registry: &Registry| {
        *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(look(registry));
    };
    let question = Question(Arc::new(Mutex::new(Asked { look: Some(Box::new(look)), heard: 0 })));
    let response = schema.execute(Request::new("{ __typename }").data(question.clone())).await;
    if question.lock().heard > 1 {
        return Err(
            "the extension stands twice on this schema, so no mutation is executed: register it once".to_owned()
        );
    }
    let answer = answer.lock().unwrap_or_else(PoisonError::into_inner).take();
    answer.ok_or_else(|| match response.errors.first() {
        Some(error) => format!(
            "the schema refused the request that asks for its rules, before it came to this extension: {}; register this \
             extension first",
            error.message
        ),
        None => "the schema does not have this extension".to_owned(),
    })
}
