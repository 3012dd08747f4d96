//! Write plugins for Anabranch in Rust: transforms, which make documents of rows, and sinks (`sink`, with the cargo
//! feature of that name), which deliver documents.
//!
//! A transform is a type that implements [`Transform`]: it names a typed row and turns each change into
//! documents. [`export!`] makes a WebAssembly component of it; [`testing`] runs it natively, without one.
//!
//! ```
//! use anabranch_sdk::{Change, Failure, Transform};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Deserialize)]
//! struct City<'a> {
//!     name: &'a str,
//!     country: Option<&'a str>,
//! }
//!
//! #[derive(Serialize)]
//! struct Document<'a> {
//!     title: &'a str,
//!     country: &'a str,
//! }
//!
//! struct Cities;
//!
//! impl Transform for Cities {
//!     const TABLES: &'static [&'static str] = &["public.cities"];
//!     type Row<'a> = City<'a>;
//!     type Answer<'a> = Option<Document<'a>>;
//!
//!     fn transform<'a>(change: Change<'a, City<'a>>) -> Result<Option<Document<'a>>, Failure> {
//!         let City { name, country } = change.row;
//!         // `None`: this row has no document.
//!         Ok(country.map(|country| Document { title: name, country }))
//!     }
//! }
//!
//! anabranch_sdk::export!(Cities);
//! # fn main() {}
//! ```
//!
//! The plugin's name and version are those of its Cargo.toml. The fields of the row, in their order, are the
//! columns that it reads; no others are sent.

mod answer;
mod batch;
mod describe;
mod failure;
pub mod host;
#[cfg(feature = "http")]
pub mod http;
mod json;
pub mod metrics;
mod msgpack;
pub mod query;
mod row;
#[cfg(feature = "sink")]
pub mod sink;
pub mod state;
pub mod testing;
mod text;
mod value;

pub use answer::{Answer, Document, IntoAnswer, Outcomes};
pub use batch::{Change, Changes, Operation, Origin};
pub use failure::{Failure, FailureClass};
pub use json::to_json;
pub use value::{Field, RawJson, Value};

#[doc(hidden)]
pub mod bindings;

/// Turns the changes of a table into documents.
pub trait Transform {
    /// The tables it is meant for, as `schema.table`.
    const TABLES: &'static [&'static str] = &[];
    /// Where its documents land unless the mapping says otherwise.
    const DESTINATION: Option<&'static str> = None;
    /// Whether deletes come to it. Otherwise the host deletes by document id.
    const WANTS_DELETES: bool = false;
    /// Whether its documents name their own ids. It must then want deletes too.
    const NAMES_IDS: bool = false;
    /// Other tables whose rows its documents depend on.
    const DEPENDS_ON: &'static [&'static str] = &[];

    /// A row: a struct whose fields are the columns that it reads, or a map of column names to [`Value`],
    /// which reads them all.
    type Row<'a>: serde::Deserialize<'a>;

    /// What it answers: an `Option` of a document (`None`: this row has none), a `Vec` of [`Document`]s
    /// (empty: this row has none), or an [`Answer`], which may also skip.
    type Answer<'a>: IntoAnswer;

    /// Is shown the changes of a batch before the first of them is answered: to ask the source or a service once for all of
    /// them, and keep the answers in a `thread_local`. Does nothing, where a transform has none.
    ///
    /// # Errors
    /// A [`Failure`] of the whole batch.
    fn prepare<'a>(changes: Changes<'a, Self>) -> Result<(), Failure>
    where
        Self: Sized,
    {
        let _ = changes;
        Ok(())
    }

    /// Answers one change.
    ///
    /// # Errors
    /// A [`Failure`] that concerns this change: with class poison it can never work; with class retry the
    /// host tries again.
    fn transform<'a>(change: Change<'a, Self::Row<'a>>) -> Result<Self::Answer<'a>, Failure>;
}

#[doc(hidden)]
pub mod internal {
    //! What [`export!`](crate::export) expands to.
    pub use crate::batch::run;
    pub use crate::describe::describe;
    #[cfg(feature = "sink")]
    pub use crate::describe::describe_sink;
    pub use crate::host::log_panics;
}

/// Exports a [`Transform`] as a component. Once in a crate, which must be a `cdylib`.
///
/// The environment variable `ANABRANCH_PLUGIN_VERSION` overrides the version of Cargo.toml at build time, so
/// that one source can be built in several versions (for tests and demonstrations).
#[macro_export]
macro_rules! export {
    ($transform:ty) => {
        #[cfg(target_family = "wasm")]
        const _: () = {
            struct Component;

            impl $crate::bindings::exports::anabranch::plugin::describe::Guest for Component {
                fn describe() -> ::std::string::String {
                    let version = match ::core::option_env!("ANABRANCH_PLUGIN_VERSION") {
                        ::core::option::Option::Some(version) => version,
                        ::core::option::Option::None => ::core::env!("CARGO_PKG_VERSION"),
                    };
                    $crate::internal::describe::<$transform>(::core::env!("CARGO_PKG_NAME"), version)
                }
            }

            impl $crate::bindings::exports::anabranch::plugin::transform::Guest for Component {
                fn transform(
                    batch: ::std::vec::Vec<u8>,
                ) -> ::core::result::Result<
                    ::std::vec::Vec<u8>,
                    $crate::bindings::anabranch::plugin::types::Failure,
                > {
                    $crate::internal::log_panics();
                    $crate::internal::run::<$transform>(&batch).map_err(::core::convert::Into::into)
                }
            }

    $crate::bindings::export_plugin!(Component with_types_in $crate::bindings);
        };
    };
}
