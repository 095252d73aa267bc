//! Futures that end whether or not anybody waits for them.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::runtime::Handle;

/// Runs a future where it is awaited; when the awaiting is given up, the rest of it runs in a task of its own.
///
/// Like a task of its own from the start, but without the way to another thread and back.
pub(crate) struct Finish<F: Future<Output: Send> + Send + 'static>(Option<Pin<Box<F>>>);

impl<F: Future<Output: Send> + Send + 'static> Finish<F> {
    pub(crate) fn new(future: F) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for Finish<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(future) = &mut self.0 else { return Poll::Pending };
        let output = std::task::ready!(future.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(output)
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Finish<F> {
    fn drop(&mut self) {
        // A panic is no reason to go on: the future would be polled again after it.
        if let (Some(future), Ok(runtime), false) = (self.0.take(), Handle::try_current(), std::thread::panicking()) {
            runtime.spawn(async move { drop(future.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{sync::oneshot, time::timeout};

    use super::*;

    #[tokio::test]
    async fn what_is_given_up_ends_all_the_same() {
        let (told, tell) = oneshot::channel();
        let work = Finish::new(async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            told.send(7)
        });
        assert!(timeout(Duration::from_millis(1), work).await.is_err());
        assert_eq!(tell.await, Ok(7));
    }

    #[tokio::test]
    async fn what_is_awaited_gives_its_output() {
        assert_eq!(Finish::new(async { 7 }).await, 7);
    }
}
