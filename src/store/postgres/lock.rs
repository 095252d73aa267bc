//! How a transaction tells others of the key that it holds.

use sha2::{Digest, Sha256};

use crate::claim::ClaimRequest;

/// The advisory locks of a transactional attempt. Two keys that share one can only make each other wait.
#[derive(Clone, Copy)]
pub(super) struct Lock {
    /// Of the key.
    pub(super) key: i64,
    /// With `class`, which is of the key too, a second lock that tells others the fingerprint.
    pub(super) print: i32,
    pub(super) class: i32,
}

impl Lock {
    pub(super) fn of(request: &ClaimRequest) -> Self {
        let digest = Sha256::new()
            .chain_update(b"async-graphql-idempotency\0")
            .chain_update(request.client.as_str())
            .chain_update(b"\0")
            .chain_update(request.key.as_str())
            .finalize();
        let number = |bytes: &[u8]| bytes.iter().fold(0_i64, |number, byte| number << 8 | i64::from(*byte));
        let small = |bytes: &[u8; 4]| i32::from_be_bytes(*bytes);
        let [a, b, c, d, ..] = request.fingerprint.hash;
        let class = digest[8..].first_chunk().map_or(0, small);
        Self { key: number(&digest[..8]), class, print: small(&[a, b, c, d]) }
    }
}
