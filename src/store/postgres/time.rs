//! Times as PostgreSQL sends them.

use sqlx::{
    Decode, Postgres, Type,
    error::BoxDynError,
    postgres::{PgTypeInfo, PgValueFormat, PgValueRef, types::Oid},
};

use crate::record::Timestamp;

/// The fixed OID of `timestamptz`.
const TIMESTAMPTZ: Oid = Oid(1184);

/// Milliseconds from 1970 to 2000, where PostgreSQL's times begin.
const EPOCH: i64 = 946_684_800_000;

impl Type<Postgres> for Timestamp {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(TIMESTAMPTZ)
    }
}

impl Decode<'_, Postgres> for Timestamp {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        match value.format() {
            PgValueFormat::Binary => {
                let microseconds = i64::from_be_bytes(value.as_bytes()?.try_into()?);
                Ok(Self(microseconds.div_euclid(1_000) + EPOCH))
            }
            PgValueFormat::Text => Err("a time in text: statements are prepared".into()),
        }
    }
}
