//! A way to a database that a test can break, lead elsewhere, or let hang.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// A port of its own that leads to a server.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    way: Arc<watch::Sender<Way>>,
    opened: Arc<AtomicU64>,
}

struct Way {
    /// The server's address.
    target: String,
    is_open: bool,
    /// How often it was broken: a connection ends with the next time.
    breaks: u64,
    /// Whether the first connection stays open, and is silent.
    first_hangs: bool,
}

impl Proxy {
    pub(crate) async fn start(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let way = Way { target, is_open: true, breaks: 0, first_hangs: false };
        let way = Arc::new(watch::Sender::new(way));
        let opened = Arc::new(AtomicU64::new(0));
        let (leads, count) = (Arc::clone(&way), Arc::clone(&opened));
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let is_first = count.fetch_add(1, Ordering::Relaxed) == 0;
                tokio::spawn(connect(near, leads.subscribe(), is_first));
            }
        });
        Self { port, way, opened }
    }

    /// Breaks every connection, and lets no new one through.
    pub(crate) fn cut(&self) {
        self.way.send_modify(|way| {
            way.is_open = false;
            way.breaks += 1;
        });
    }

    pub(crate) fn mend(&self) {
        self.way.send_modify(|way| way.is_open = true);
    }

    /// Breaks every connection; new ones lead to another server.
    pub(crate) fn lead_to(&self, target: String) {
        self.way.send_modify(|way| {
            way.target = target;
            way.breaks += 1;
        });
    }

    /// The first connection stays open, and is silent.
    pub(crate) fn hang_the_first(&self) {
        self.way.send_modify(|way| way.first_hangs = true);
    }

    /// How many connections were opened so far.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }
}

async fn connect(mut near: TcpStream, mut way: watch::Receiver<Way>, is_first: bool) {
    let (target, breaks) = {
        let way = way.borrow();
        if !way.is_open {
            return;
        }
        (way.target.clone(), way.breaks)
    };
    let Ok(mut far) = TcpStream::connect(target).await else { return };
    let hangs = tokio::select! {
        _ = copy_bidirectional(&mut near, &mut far) => false,
        way = way.wait_for(|way| way.breaks > breaks || way.first_hangs && is_first) => {
            way.is_ok_and(|way| way.breaks == breaks)
        }
    };
    if hangs {
        std::future::pending::<()>().await;
    }
}
