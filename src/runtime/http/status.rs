//! `/api/status`: what `anabranch status --json` shows, over a connection of the server.
//!
//! However many ask, one reading is under way at a time, and an answer serves for a second: the endpoint cannot be
//! used to put load on the database.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;
use tokio::sync::Mutex;

use crate::{
    control::{ControlError, StatusShape},
    postgres::{ConnectSettings, Purpose},
};

/// How long an answer serves.
const FRESH: Duration = Duration::from_secs(1);
/// How long a reading may take, its connection included.
const LIMIT: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub(super) struct StatusReader {
    connect: ConnectSettings,
    installation: String,
    last: Mutex<Option<(Instant, Read)>>,
}

/// Whether it could be read, and the answer.
type Read = (bool, Arc<str>);

/// As the command line tells an error.
#[derive(Serialize)]
struct Failed<'a> {
    error: Why<'a>,
}

#[derive(Serialize)]
struct Why<'a> {
    kind: &'a str,
    message: &'a str,
}

impl StatusReader {
    pub(super) fn new(connect: ConnectSettings, installation: String) -> Self {
        Self { connect, installation, last: Mutex::default() }
    }

    /// The answer: whether it could be read, and JSON.
    pub(super) async fn read(&self) -> Read {
        let mut last = self.last.lock().await;
        if let Some((at, read)) = &*last
            && at.elapsed() < FRESH
        {
            return read.clone();
        }
        let read = match tokio::time::timeout(LIMIT, self.look()).await {
            Ok(Ok(shape)) => told(true, &shape),
            Ok(Err(error)) => failed(&error.to_string()),
            Err(_) => failed(&format!("the database did not answer within {} s", LIMIT.as_secs())),
        };
        *last = Some((Instant::now(), read.clone()));
        read
    }

    async fn look(&self) -> Result<StatusShape, ControlError> {
        let client = self.connect.connect(Purpose::Status).await?;
        // Given up here, it would go on there.
        let limit = format!("set statement_timeout = {}", LIMIT.as_millis());
        client.batch_execute(&limit).await.map_err(crate::postgres::Error::from)?;
        let shape = StatusShape::read(&client, self.installation.clone()).await?;
        client.close().await;
        Ok(shape)
    }
}

fn failed(message: &str) -> Read {
    told(false, &Failed { error: Why { kind: "failed", message } })
}

fn told(well: bool, value: &impl Serialize) -> Read {
    match serde_json::to_string_pretty(value) {
        Ok(json) => (well, (json + "\n").into()),
        Err(error) => (false, error.to_string().into()),
    }
}
