//! The address that servers know their database by, and that moves from one member of a cluster to another.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

pub(crate) struct Address {
    port: u16,
    target: Arc<watch::Sender<u16>>,
    opened: Arc<AtomicU64>,
}

impl Address {
    /// An address that leads to this port.
    pub(crate) async fn of(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = Arc::new(watch::Sender::new(target));
        let opened = Arc::new(AtomicU64::new(0));
        let (leads_to, count) = (Arc::clone(&target), Arc::clone(&opened));
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let mut moved = leads_to.subscribe();
                tokio::spawn(async move {
                    let target = *moved.borrow_and_update();
                    let Ok(mut far) = TcpStream::connect(("127.0.0.1", target)).await else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => {}
                        _ = moved.changed() => {}
                    }
                });
            }
        });
        Self { port, target, opened }
    }

    /// Breaks every connection; new ones lead to another port.
    pub(crate) fn move_to(&self, target: u16) {
        self.target.send_replace(target);
    }

    /// How many connections were opened so far.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }
}
