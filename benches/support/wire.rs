//! Round trips as they are on the wire, between a pool and its server: the price of a real network.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use sqlx::postgres::PgConnectOptions;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf},
};

/// Of the extended protocol: the message that sqlx's pool tests a connection with, alone in its packet.
const SYNC: [u8; 5] = *b"S\0\0\0\x04";

/// How often a client spoke and was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trips {
    /// Without [`Trips::pings`].
    pub(crate) statements: u64,
    /// The pool's own: before a connection is lent, and after it is given back.
    pub(crate) pings: u64,
}

/// A proxy that counts.
#[derive(Clone, Default)]
pub(crate) struct Wire {
    statements: Arc<AtomicU64>,
    pings: Arc<AtomicU64>,
}

impl Wire {
    /// Listens, and gives the options of connections through it.
    pub(crate) async fn tap(options: PgConnectOptions) -> (Self, PgConnectOptions) {
        let (wire, listener) = (Self::default(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let port = listener.local_addr().unwrap().port();
        let server = (options.get_host().to_owned(), options.get_port());
        let tapped = wire.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let answered = Arc::new(AtomicBool::new(true));
                let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
                tokio::spawn(tapped.clone().questions(from_client, to_server, Arc::clone(&answered)));
                tokio::spawn(answers(from_server, to_client, answered));
            }
        });
        (wire, options.host("127.0.0.1").port(port).ssl_mode(sqlx::postgres::PgSslMode::Disable))
    }

    /// So far, once nothing has been said for a moment.
    pub(crate) async fn trips(&self) -> Trips {
        let mut before = self.read();
        loop {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let now = self.read();
            if now == before {
                return now;
            }
            before = now;
        }
    }

    fn read(&self) -> Trips {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Trips { statements: read(&self.statements), pings: read(&self.pings) }
    }

    async fn questions(self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, answered: Arc<AtomicBool>) {
        let mut packet = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from.read(&mut packet).await {
            if answered.swap(false, Ordering::Relaxed) {
                let count = if packet[..length] == SYNC { &self.pings } else { &self.statements };
                count.fetch_add(1, Ordering::Relaxed);
            }
            if to.write_all(&packet[..length]).await.is_err() {
                return;
            }
        }
    }
}

async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, answered: Arc<AtomicBool>) {
    let mut packet = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut packet).await {
        answered.store(true, Ordering::Relaxed);
        if to.write_all(&packet[..length]).await.is_err() {
            return;
        }
    }
}
