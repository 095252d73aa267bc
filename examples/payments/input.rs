//! What a client may send, beyond what the schema's types say. These errors count as rejections, so the key of a
//! refused request is free for the corrected one.

use crate::failure::Failure;

/// More than anybody has, and far from where sums of it overflow.
const MOST: i64 = 1_000_000_000_000;

/// The longest text, in bytes.
const LONGEST: usize = 2_000;

/// An amount of money.
pub(crate) fn amount(amount: i64) -> Result<i64, Failure> {
    if (1..=MOST).contains(&amount) {
        Ok(amount)
    } else {
        Err(Failure::BadUserInput("The amount must be more than zero and at most 10^12 minor units."))
    }
}

/// An ISO 4217 code, by its form.
pub(crate) fn currency(code: String) -> Result<String, Failure> {
    if code.len() == 3 && code.bytes().all(|byte| byte.is_ascii_uppercase()) {
        Ok(code)
    } else {
        Err(Failure::BadUserInput("The currency must be three capital letters."))
    }
}

/// A text that Postgres can keep.
pub(crate) fn text(text: String) -> Result<String, Failure> {
    if text.len() <= LONGEST && !text.contains('\0') {
        Ok(text)
    } else {
        Err(Failure::BadUserInput("A text must have at most 2000 bytes and no null character."))
    }
}
