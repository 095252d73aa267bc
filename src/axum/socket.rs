//! A WebSocket's way to its end: what runs is answered, and then the client is told that the server goes.

use std::{future::Future, pin::pin, time::Duration};

use ::axum::{
    Error,
    extract::ws::{CloseFrame, Message, WebSocket, close_code},
};
use futures_util::{
    Sink, SinkExt, Stream, StreamExt,
    stream::{self, SplitSink},
};
use tokio::{sync::mpsc, time::timeout};
use tokio_util::sync::{CancellationToken, PollSender};

/// How long the last answers of a session have to be written.
const LAST_ANSWERS: Duration = Duration::from_millis(200);

/// A socket in its parts.
pub(super) struct Socket {
    outgoing: mpsc::Receiver<Message>,
    sink: SplitSink<WebSocket, Message>,
}

impl Socket {
    /// The socket, and what a session writes to and reads from. It reads nothing more once the server closes.
    pub(super) fn of(
        socket: WebSocket,
        closing: CancellationToken,
    ) -> (Self, impl Sink<Message> + Send, impl Stream<Item = Result<Message, Error>> + Send) {
        let (sink, incoming) = socket.split();
        let (answers, outgoing) = mpsc::channel(1);
        let incoming = incoming.take_until(closing.cancelled_owned()).chain(stream::pending());
        (Self { outgoing, sink }, PollSender::new(answers), incoming)
    }

    /// Runs a session until it ends, or until the server has drained; then closes the socket with 1001.
    pub(super) async fn run(self, session: impl Future<Output = ()>, drained: impl Future<Output = ()>) {
        let Self { mut outgoing, mut sink } = self;
        let session = async move {
            let mut session = pin!(session);
            tokio::select! {
                () = &mut session => return,
                () = drained => {}
            }
            // Elapsed, unless it ends by itself.
            let _ = timeout(LAST_ANSWERS, session).await;
        };
        let writing = async move {
            while let Some(message) = outgoing.recv().await {
                if sink.send(message).await.is_err() {
                    return;
                }
            }
            let going = CloseFrame { code: close_code::AWAY, reason: "the server goes".into() };
            // A session that has ended by itself has closed it already.
            let _ = sink.send(Message::Close(Some(going))).await;
        };
        tokio::join!(session, writing);
    }
}
