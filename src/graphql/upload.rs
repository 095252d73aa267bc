//! Uploaded files enter a fingerprint by their content.

use std::io::{Read, Seek, SeekFrom};

use async_graphql::UploadValue;
use sha2::{Digest, Sha256};

/// The SHA-256 of each upload, in order. The files are left at their beginning.
pub(crate) async fn hash_uploads(uploads: &[UploadValue]) -> std::io::Result<Vec<[u8; 32]>> {
    if uploads.is_empty() {
        return Ok(Vec::new());
    }
    let files: Vec<_> = uploads.iter().map(|upload| upload.content.try_clone()).collect::<Result<_, _>>()?;
    let hashing = tokio::task::spawn_blocking(move || files.into_iter().map(hash).collect());
    hashing.await.map_err(std::io::Error::other)?
}

fn hash(mut file: std::fs::File) -> std::io::Result<[u8; 32]> {
    let mut hasher = Sha256::new();
    let mut buffer = [0; 1 << 13];
    file.seek(SeekFrom::Start(0))?;
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => hasher.update(&buffer[..read]),
        }
    }
    // The clone shares its position with the file that the resolver reads.
    file.seek(SeekFrom::Start(0))?;
    Ok(hasher.finalize().into())
}
