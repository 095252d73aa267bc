//! Where a server listens, and how it says so.

use std::io::{self, Write};

use tokio::net::TcpListener;

/// An address that nobody can listen on.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on {address}")]
pub(crate) struct ListenError {
    address: String,
    source: io::Error,
}

/// Takes an address; port 0 takes any free one.
pub(crate) async fn bind(address: &str) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).await.map_err(|source| ListenError { address: address.to_owned(), source })
}

/// Prints a line on the standard output. Whoever reads it may have gone: that is no reason for a server to stop.
pub(crate) fn announce(line: &str) {
    let mut stdout = io::stdout().lock();
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}
