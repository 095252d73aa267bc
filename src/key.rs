//! The client's key and the client's identity: validated strings that can't be confused with others.

use std::fmt;

/// What a client sends to say "this is the same request": 1 to 255 visible ASCII characters
/// (`0x21` to `0x7E`), compared byte for byte.
///
/// No Unicode, so that two keys that look alike are alike; no white space, so that no proxy, form or
/// shell changes one on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey(Box<str>);

impl IdempotencyKey {
    /// Longest key, in characters and bytes.
    pub const MAX_LENGTH: usize = 255;
    /// The rule, in the words that a client gets with `IDEMPOTENCY_KEY_INVALID`.
    pub const RULE: &'static str = "an idempotency key is a string of 1 to 255 visible ASCII characters (0x21 to 0x7E)";

    /// Checks the rule.
    ///
    /// # Errors
    /// [`InvalidKey`] when `key` breaks [`IdempotencyKey::RULE`].
    pub fn new(key: impl Into<String>) -> Result<Self, InvalidKey> {
        let key = key.into();
        let valid = (1..=Self::MAX_LENGTH).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
        if valid { Ok(Self(key.into_boxed_str())) } else { Err(InvalidKey) }
    }

    /// The key as the client sent it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The string is not a valid [`IdempotencyKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", IdempotencyKey::RULE)]
pub struct InvalidKey;

/// Who sent the request, from the server's own authentication and never from the GraphQL arguments.
///
/// The unit of uniqueness is the pair of client and key. 1 to 255 bytes, without control characters.
/// Keep secrets out of it: it is stored and logged. [`ClientId::hashed`] makes one out of a secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(Box<str>);

impl ClientId {
    /// Longest identity, in bytes.
    pub const MAX_LENGTH: usize = 255;

    /// Checks the rule.
    ///
    /// # Errors
    /// [`InvalidClient`] when `client` is empty, longer than 255 bytes, or has control characters.
    pub fn new(client: impl Into<String>) -> Result<Self, InvalidClient> {
        let client = client.into();
        let valid = (1..=Self::MAX_LENGTH).contains(&client.len()) && !client.chars().any(char::is_control);
        if valid { Ok(Self(client.into_boxed_str())) } else { Err(InvalidClient) }
    }

    /// An identity that stands for a secret (a bearer token) without revealing it: the first 160 bits of its
    /// SHA-256, in hex. Long enough that nobody finds a second secret with the same identity, and short, because every
    /// record has it.
    #[must_use]
    pub fn hashed(secret: impl AsRef<[u8]>) -> Self {
        let digest = <sha2::Sha256 as sha2::Digest>::digest(secret.as_ref());
        Self(hex(&digest[..20]).into_boxed_str())
    }

    /// The identity as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The string is not a valid [`ClientId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a client identity is a string of 1 to 255 bytes without control characters")]
pub struct InvalidClient;

/// Lower-case hexadecimal, two digits a byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 0x0f)]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_visible_ascii_of_1_to_255() {
        for good in ["k", "!", "~", &"x".repeat(255)] {
            assert!(IdempotencyKey::new(good).is_ok(), "{good:?}");
        }
        for bad in ["", " ", "\t", " k", "k ", "é", "a\u{200d}b", "\u{7f}", &"x".repeat(256)] {
            assert_eq!(IdempotencyKey::new(bad), Err(InvalidKey), "{bad:?}");
        }
    }

    #[test]
    fn a_client_has_no_control_characters_and_at_most_255_bytes() {
        assert!(ClientId::new("tenant é 1").is_ok());
        for bad in ["", "a\0b", "a\nb", &"é".repeat(128)] {
            assert_eq!(ClientId::new(bad), Err(InvalidClient), "{bad:?}");
        }
        assert_eq!(ClientId::hashed("token").as_str().len(), 40);
    }
}
