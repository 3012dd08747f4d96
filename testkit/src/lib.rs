//! What Anabranch's tests, demo and benchmarks stand on: private Postgres clusters, guests built from
//! source, the host as a child process, a seeded load and the checker.
//!
//! * [`postgres`]: a private Postgres for each test process ([`shared`]) or test ([`Cluster`]), gone with it.
//! * [`guests`]: a Rust that compiles to WebAssembly, and guests built once.
//! * [`host`]: `anabranch run` as a child ([`Host`]), with signals and logs.
//! * [`proxy`]: a network that can fall silent and break ([`Proxy`]).
//! * [`shop`] and [`load`]: tables to work on, and a seeded mixed load on them.
//! * [`checker`]: destination = transform(source), key by key, both ways.
//! * [`wait`]: waiting for conditions with a deadline and a description. Tests never sleep for a time.
//!
//! Nothing here is part of the product, and nothing here may leave a process or a directory behind, however
//! its own process ends.

pub mod checker;
pub mod command;
pub mod guests;
pub mod host;
pub mod load;
pub mod paths;
pub mod postgres;
pub mod proxy;
pub mod shop;
pub mod wait;

pub use host::Host;
pub use postgres::{Backup, Cluster, ClusterOptions, Database, Stop, shared, shared_of};
pub use proxy::Proxy;
pub use wait::{wait_for, wait_until};
