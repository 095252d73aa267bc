//! The canonical form of a mutation and its arguments, and its SHA-256, with a version.
//!
//! Canonical JSON in the sense of RFC 8785 (no white space, object members sorted by UTF-16 code units,
//! numbers as ECMAScript prints them), with three differences that keep unlike requests apart: integers
//! never pass through a float, an enum value is a bare word, and a float that is not of the type `Float`
//! keeps its decimal point. The text is unambiguous, so two requests share a fingerprint only when they
//! are the same request or SHA-256 is broken.

use sha2::{Digest, Sha256};

use crate::key::hex;

/// SHA-256 of the canonical form, and the version of the rules that made it.
///
/// Fingerprints of different versions can't be compared: they are never a match and never a mismatch.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// Version of the rules, [`Fingerprint::VERSION`] for those that this crate makes.
    pub version: i16,
    /// The hash.
    pub hash: [u8; 32],
}

impl Fingerprint {
    /// The version of the rules in this file.
    pub const VERSION: i16 = 1;
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "v{}:{}", self.version, hex(&self.hash))
    }
}

/// Writes the canonical form, value by value.
///
/// The caller brings the order: object members sorted with [`Canonical::member_order`], and only values
/// that count. Commas and colons are written here.
#[derive(Default)]
pub struct Canonical {
    text: Vec<u8>,
    /// Whether the next value or name is the first of its list or object.
    first: bool,
}

impl Canonical {
    /// An empty form.
    #[must_use]
    pub fn new() -> Self {
        Self { text: Vec::with_capacity(256), first: true }
    }

    /// The order of members in an object: RFC 8785, by UTF-16 code units.
    #[must_use]
    pub fn member_order(a: &str, b: &str) -> std::cmp::Ordering {
        if a.is_ascii() && b.is_ascii() { a.cmp(b) } else { a.encode_utf16().cmp(b.encode_utf16()) }
    }

    /// `null`.
    pub fn null(&mut self) {
        self.word("null");
    }

    /// `true` or `false`.
    pub fn boolean(&mut self, value: bool) {
        self.word(if value { "true" } else { "false" });
    }

    /// An integer, given by its decimal digits, exact whatever its size.
    pub fn integer(&mut self, digits: &str) {
        self.word(digits);
    }

    /// A value of the type `Float`: `1`, `1.0` and `1e0` are one value.
    pub fn float(&mut self, value: f64) {
        let mut buffer = ryu_js::Buffer::new();
        self.word(buffer.format(value));
    }

    /// A number with a fraction or an exponent in a scalar that is not `Float` and may tell `1` from `1.0`.
    pub fn decimal(&mut self, value: f64) {
        let mut buffer = ryu_js::Buffer::new();
        let digits = buffer.format(value);
        self.word(digits);
        if digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') {
            self.text.extend_from_slice(b".0");
        }
    }

    /// A string, compared as it is, with no Unicode normalisation.
    pub fn string(&mut self, value: &str) {
        self.separate();
        self.quote(value);
    }

    /// An enum value: a bare word, so that it differs from the string of the same letters.
    pub fn symbol(&mut self, name: &str) {
        self.word(name);
    }

    /// Bytes that stand for content (a file's SHA-256), in hex behind a mark that no JSON value has.
    pub fn content(&mut self, hash: &[u8]) {
        self.separate();
        self.text.push(b'#');
        self.text.extend_from_slice(hex(hash).as_bytes());
    }

    /// A list; `items` writes its values in order.
    pub fn list(&mut self, items: impl FnOnce(&mut Self)) {
        self.nest(b'[', items, b']');
    }

    /// An object; `members` writes [`Canonical::member`]s in [`Canonical::member_order`].
    pub fn object(&mut self, members: impl FnOnce(&mut Self)) {
        self.nest(b'{', members, b'}');
    }

    /// The name of an object's member; its value is written next.
    pub fn member(&mut self, name: &str) {
        self.separate();
        self.quote(name);
        self.text.push(b':');
        self.first = true;
    }

    /// The text so far. For comparing parts of a request; [`Canonical::fingerprint`] ends a whole one.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Only whole strings and ASCII are ever written.
        std::str::from_utf8(&self.text).unwrap_or_default()
    }

    /// The fingerprint of all that was written.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint { version: Fingerprint::VERSION, hash: Sha256::digest(&self.text).into() }
    }

    fn word(&mut self, word: &str) {
        self.separate();
        self.text.extend_from_slice(word.as_bytes());
    }

    fn nest(&mut self, open: u8, inside: impl FnOnce(&mut Self), close: u8) {
        self.separate();
        self.text.push(open);
        self.first = true;
        inside(self);
        self.text.push(close);
        self.first = false;
    }

    fn separate(&mut self) {
        if !std::mem::replace(&mut self.first, false) {
            self.text.push(b',');
        }
    }

    /// RFC 8785, section 3.2.2.2: the two-letter escapes of JSON, `\u00xx` for other control characters.
    #[allow(clippy::needless_bitwise_bool, reason = "without branches the search is vectorised")]
    fn quote(&mut self, value: &str) {
        self.text.push(b'"');
        // Block by block, since a block without anything special is found out and copied fast.
        for block in value.as_bytes().chunks(64) {
            let is_special = |byte: u8| (byte < 0x20) | (byte == b'"') | (byte == b'\\');
            if block.iter().fold(false, |any, byte| any | is_special(*byte)) {
                self.escape(block);
            } else {
                self.text.extend_from_slice(block);
            }
        }
        self.text.push(b'"');
    }

    fn escape(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'"' => self.text.extend_from_slice(b"\\\""),
                b'\\' => self.text.extend_from_slice(b"\\\\"),
                0x08 => self.text.extend_from_slice(b"\\b"),
                0x09 => self.text.extend_from_slice(b"\\t"),
                0x0a => self.text.extend_from_slice(b"\\n"),
                0x0c => self.text.extend_from_slice(b"\\f"),
                0x0d => self.text.extend_from_slice(b"\\r"),
                control @ 0x00..0x20 => {
                    self.text.extend_from_slice(b"\\u00");
                    self.text.extend_from_slice(hex(&[*control]).as_bytes());
                }
                other => self.text.push(*other),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut Canonical)) -> String {
        let mut canonical = Canonical::new();
        write(&mut canonical);
        canonical.as_str().to_owned()
    }

    #[test]
    fn values_are_separated_and_nested_unambiguously() {
        let written = text(|c| {
            c.list(|c| {
                c.string("a\"\\\n\u{1}é");
                c.object(|c| {
                    c.member("x");
                    c.integer("18446744073709551616");
                    c.member("y");
                    c.list(|_| {});
                });
                c.symbol("USD");
                c.null();
            });
        });
        assert_eq!(written, "[\"a\\\"\\\\\\n\\u0001é\",{\"x\":18446744073709551616,\"y\":[]},USD,null]");
    }

    #[test]
    fn a_float_prints_as_ecmascript_does_and_a_decimal_keeps_its_point() {
        assert_eq!(text(|c| c.float(1.0)), "1");
        assert_eq!(text(|c| c.float(1e21)), "1e+21");
        assert_eq!(text(|c| c.float(-0.0)), "0");
        assert_eq!(text(|c| c.decimal(1.0)), "1.0");
        assert_eq!(text(|c| c.decimal(0.1)), "0.1");
    }

    #[test]
    fn members_sort_by_utf16_code_units() {
        assert_eq!(Canonical::member_order("\u{fb33}", "\u{1f600}"), std::cmp::Ordering::Greater);
        assert_eq!(Canonical::member_order("a", "b"), std::cmp::Ordering::Less);
    }
}
