//! Asking a schema about its types: a request that carries the question, which the extension answers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_graphql::{Executor, Request, registry::Registry};

/// In the data of a request: what the extension is to do with the schema's registry.
#[derive(Clone)]
pub(crate) struct Question(Arc<Mutex<Asked>>);

struct Asked {
    /// None once it has been answered.
    look: Option<Box<Look>>,
    /// How many instances of the extension have heard of it.
    heard: usize,
}

type Look = dyn FnOnce(&Registry) + Send;

impl Question {
    /// Answers it, if nobody has.
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

/// Asks a schema. `Err`: why it did not answer.
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
