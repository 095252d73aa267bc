//! Futures that end whether or not anybody waits for them.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{runtime::Handle, time::timeout};

use crate::store::StoreError;

/// Runs a future where it is awaited; when the awaiting is given up, the rest of it runs in a task of its own.
///
/// Like a spawned task, but without the cost of another thread while it is awaited.
pub(crate) struct Detached<F: Future<Output: Send> + Send + 'static>(Option<Pin<Box<F>>>);

impl<F: Future<Output: Send> + Send + 'static> Detached<F> {
    pub(crate) fn new(future: F) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for Detached<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(future) = &mut self.0 else { return Poll::Pending };
        let output = std::task::ready!(future.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(output)
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Detached<F> {
    fn drop(&mut self) {
        // Not during a panic: it may be the future's own, which must not be polled again.
        if let (Some(future), Ok(runtime), false) = (self.0.take(), Handle::try_current(), std::thread::panicking()) {
            runtime.spawn(async move { drop(future.await) });
        }
    }
}

/// Runs a call of the store to its end, and waits for its answer for at most `patience`.
pub(crate) fn ask<T: Send>(
    patience: Duration,
    question: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> impl Future<Output = Result<T, StoreError>> + Send {
    // Not an `async fn`: every caller's future would have room for the question, which is some kilobytes.
    let answer = timeout(patience, Detached::new(question));
    async { answer.await.unwrap_or_else(|elapsed| Err(StoreError::InDoubt(elapsed.into()))) }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn what_is_given_up_ends_all_the_same() {
        let (told, tell) = oneshot::channel();
        let work = Detached::new(async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            told.send(7)
        });
        assert!(timeout(Duration::from_millis(1), work).await.is_err());
        assert_eq!(tell.await, Ok(7));
    }

    #[tokio::test]
    async fn what_is_awaited_gives_its_output() {
        assert_eq!(Detached::new(async { 7 }).await, 7);
    }
}
