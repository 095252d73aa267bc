//! Times as they are kept in SQLite: milliseconds.

use sqlx::{
    Decode, Sqlite, Type,
    error::BoxDynError,
    sqlite::{SqliteTypeInfo, SqliteValueRef},
};

use crate::record::Timestamp;

impl Type<Sqlite> for Timestamp {
    fn type_info() -> SqliteTypeInfo {
        <i64 as Type<Sqlite>>::type_info()
    }

    fn compatible(ty: &SqliteTypeInfo) -> bool {
        <i64 as Type<Sqlite>>::compatible(ty)
    }
}

impl<'row> Decode<'row, Sqlite> for Timestamp {
    fn decode(value: SqliteValueRef<'row>) -> Result<Self, BoxDynError> {
        <i64 as Decode<'row, Sqlite>>::decode(value).map(Self)
    }
}
