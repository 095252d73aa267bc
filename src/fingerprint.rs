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
    pub version: u8,
    /// The hash.
    pub hash: [u8; 32],
}

impl Fingerprint {
    /// The version of the rules in this file.
    pub const VERSION: u8 = 1;
    /// Length of the stored form, in bytes.
    pub const LENGTH: usize = 33;

    /// The stored form: the version's byte, then the hash.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [self.version; Self::LENGTH];
        bytes[1..].copy_from_slice(&self.hash);
        bytes
    }

    /// Reads the stored form. None when it isn't one.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (version, hash) = bytes.split_first()?;
        Some(Self { version: *version, hash: hash.try_into().ok()? })
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "v{}:{}", self.version, hex(&self.hash))
    }
}

/// Writes the canonical form, value by value.
///
/// The caller sorts object members with [`Canonical::member_order`] and leaves out what does not count.
/// Commas and colons are written here.
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

    /// The text so far, for comparing parts of a request. A whole request ends in [`Canonical::fingerprint`].
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

    /// RFC 8785, section 3.2.2.2: the two-letter escapes of JSON, `\u00xx` for other control characters, and nothing
    /// else escaped. That is what `serde_json` writes.
    fn quote(&mut self, value: &str) {
        // A string can always be written to memory.
        let _ = serde_json::to_writer(&mut self.text, value);
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
                c.boolean(true);
                c.boolean(false);
                c.content(&[0x0f, 0xa0]);
            });
        });
        assert_eq!(
            written,
            "[\"a\\\"\\\\\\n\\u0001é\",{\"x\":18446744073709551616,\"y\":[]},USD,null,true,false,#0fa0]"
        );
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
    fn a_string_is_escaped_as_rfc_8785_says_and_no_further() {
        let all: String = (0..0x80_u8).map(char::from).chain(['\u{2028}', '\u{7f}', '\u{10ffff}']).collect();
        let expected: String = all
            .chars()
            .map(|letter| match letter {
                '"' => "\\\"".to_owned(),
                '\\' => "\\\\".to_owned(),
                '\u{8}' => "\\b".to_owned(),
                '\t' => "\\t".to_owned(),
                '\n' => "\\n".to_owned(),
                '\u{c}' => "\\f".to_owned(),
                '\r' => "\\r".to_owned(),
                '\0'..' ' => format!("\\u{:04x}", u32::from(letter)),
                other => other.to_string(),
            })
            .collect();
        assert_eq!(text(|c| c.string(&all)), format!("\"{expected}\""));
    }

    #[test]
    fn the_stored_form_reads_back() {
        let fingerprint = text_fingerprint("x");
        assert_eq!(Fingerprint::from_bytes(&fingerprint.to_bytes()), Some(fingerprint));
        assert_eq!(fingerprint.to_bytes()[0], Fingerprint::VERSION);
        for wrong in [&[][..], &[1; 32], &[1; 34]] {
            assert_eq!(Fingerprint::from_bytes(wrong), None);
        }
        assert_ne!(fingerprint, text_fingerprint("y"));
        assert!(format!("{fingerprint:?}").starts_with("v1:"));
    }

    fn text_fingerprint(value: &str) -> Fingerprint {
        let mut canonical = Canonical::new();
        canonical.string(value);
        canonical.fingerprint()
    }

    #[test]
    fn members_sort_by_utf16_code_units() {
        assert_eq!(Canonical::member_order("\u{fb33}", "\u{1f600}"), std::cmp::Ordering::Greater);
        assert_eq!(Canonical::member_order("a", "b"), std::cmp::Ordering::Less);
    }
}
