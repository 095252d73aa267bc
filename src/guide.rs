//! The pages of `docs/`, a module for each, so that their code is compiled and run.

#[doc = include_str!("../docs/stores.md")]
pub mod stores {}

#[doc = include_str!("../docs/scale.md")]
pub mod scale {}
