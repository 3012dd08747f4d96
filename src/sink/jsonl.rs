//! JSON lines: one document a line, appended to a file or written to standard output.
//!
//! What it guarantees: a file is flushed and synced before a delivery is acknowledged; a delivery that fails
//! leaves no part of itself behind; a line torn by a crash (it was never acknowledged, so it comes again) is
//! cut off before the next one is written. The file may be rotated at any time: it is opened anew for each
//! delivery. Standard output is flushed; what reads it decides what is durable. What it must never do: cut
//! into a file that it did not write.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::PathBuf,
    sync::Arc,
};

use tokio::sync::Mutex;

use super::{Capabilities, JsonlSettings, Progress, Rejected, Sink, no_purge, render, usable};
use crate::model::{DocumentView, Documents, Failure, FailureClass};

/// How each of our lines begins: tells our torn line from somebody else's text.
const LINE_START: &[u8] = b"{\"op\":\"";

/// Appends documents as lines.
#[derive(Debug)]
pub struct JsonlSink {
    place: Arc<Place>,
    /// Held by the blocking thread that writes: one delivery after the other.
    writing: Arc<Mutex<()>>,
}

#[derive(Debug)]
struct Place {
    name: String,
    /// None for standard output.
    path: Option<PathBuf>,
}

impl JsonlSink {
    /// The sink `name`. Does not touch the file.
    #[must_use]
    pub fn new(name: &str, settings: &JsonlSettings) -> Self {
        let path = (settings.path.as_os_str() != "-").then(|| settings.path.clone());
        Self { place: Arc::new(Place { name: name.to_owned(), path }), writing: Arc::default() }
    }

    async fn run(
        &self,
        work: impl FnOnce(&Place) -> Result<(), Failure> + Send + 'static,
    ) -> Result<(), Failure> {
        let writing = Arc::clone(&self.writing).lock_owned().await;
        let place = Arc::clone(&self.place);
        let call = move || {
            let done = work(&place);
            drop(writing);
            done
        };
        tokio::task::spawn_blocking(call).await.unwrap_or_else(|error| {
            Err(self.place.classified(
                FailureClass::Retry,
                "jsonl-stopped",
                &format!("the call was cut short: {error}"),
            ))
        })
    }
}

#[async_trait::async_trait]
impl Sink for JsonlSink {
    fn kind(&self) -> &'static str {
        "jsonl"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    async fn open(&self) -> Result<(), Failure> {
        self.run(|place| place.append(&[])).await
    }

    async fn deliver(
        &self,
        documents: &Documents,
        _progress: Option<&Progress>,
    ) -> Result<Vec<Rejected>, Failure> {
        let mut rejected = Vec::new();
        let mut lines = Vec::with_capacity(documents.bytes.len() + documents.len() * 192);
        for index in 0..documents.len() {
            match usable(documents, index) {
                Ok(document) => push_line(&mut lines, documents, &document),
                Err(refused) => rejected.push(refused),
            }
        }
        if !lines.is_empty() {
            self.run(move |place| place.append(&lines)).await?;
        }
        Ok(rejected)
    }

    async fn purge(&self, _destination: &str, _progress: Option<&Progress>) -> Result<(), Failure> {
        Err(no_purge(&self.place.name, self.kind()))
    }

    async fn close(&self) -> Result<(), Failure> {
        Ok(())
    }
}

fn push_line(out: &mut Vec<u8>, documents: &Documents, document: &DocumentView<'_>) {
    out.extend_from_slice(LINE_START);
    out.extend_from_slice(render::operation(document.operation).as_bytes());
    out.extend_from_slice(b"\",\"destination\":");
    render::push_string(out, document.destination);
    out.extend_from_slice(b",\"id\":");
    render::push_string(out, document.id);
    render::push_position(out, document);
    out.extend_from_slice(b",\"entity\":");
    render::push_string(out, &documents.entity);
    out.extend_from_slice(b",\"origin\":\"");
    out.extend_from_slice(documents.origin.as_str().as_bytes());
    out.push(b'"');
    let body = out.len();
    render::push_body(out, document);
    // Inside JSON text a raw line break can only be white space between tokens.
    for byte in out.iter_mut().skip(body).filter(|byte| matches!(byte, b'\n' | b'\r')) {
        *byte = b' ';
    }
    out.extend_from_slice(b"}\n");
}

impl Place {
    /// Appends whole lines; all of them, or nothing.
    fn append(&self, lines: &[u8]) -> Result<(), Failure> {
        let Some(path) = &self.path else {
            let mut out = io::stdout().lock();
            return out.write_all(lines).and_then(|()| out.flush()).map_err(|error| self.failure(&error));
        };
        let existed = path.exists();
        let failure = |error: io::Error| self.failure(&error);
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(path).map_err(failure)?;
        if !file.metadata().map_err(failure)?.is_file() {
            return Err(self.classified(
                FailureClass::Fatal,
                "jsonl-not-a-file",
                "this is no regular file; name one, or `-` for standard output",
            ));
        }
        // Other mappings and programs that append here take the same lock; it ends with `file`.
        file.lock().map_err(failure)?;
        let length = self.end_of_lines(&mut file)?;
        if let Err(error) = file.write_all(lines).and_then(|()| file.sync_data()) {
            // Without this, a full disk would leave half a line in front of the next attempt's.
            if let Err(undo) = file.set_len(length) {
                tracing::warn!(sink = self.name, path = %path.display(), %undo, "could not take back a partial write");
            }
            return Err(self.failure(&error));
        }
        if !existed {
            sync_directory(path).map_err(failure)?;
        }
        Ok(())
    }

    /// Cuts off (or completes) a last line without its end; gives the length of the file then.
    fn end_of_lines(&self, file: &mut File) -> Result<u64, Failure> {
        let failure = |error: io::Error| self.failure(&error);
        let length = file.metadata().map_err(failure)?.len();
        let tail = tail(file, length).map_err(failure)?;
        if tail.is_empty() {
            return Ok(length);
        }
        if serde_json::from_slice::<serde::de::IgnoredAny>(&tail).is_ok() {
            file.write_all(b"\n").map_err(failure)?;
            return Ok(length + 1);
        }
        // After a power cut a file can end in zeros that stand for what was not written in time.
        let written = tail.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let ours = tail[..written].iter().zip(LINE_START).all(|(byte, start)| byte == start);
        if !ours {
            return Err(self.classified(
                FailureClass::Fatal,
                "jsonl-foreign",
                "its last line was not written by this sink and has no end; name another path, or end the line",
            ));
        }
        let kept = length - tail.len() as u64;
        tracing::warn!(
            sink = self.name,
            bytes = tail.len(),
            "cut off a torn last line; its document comes again"
        );
        file.set_len(kept).map_err(failure)?;
        Ok(kept)
    }

    fn classified(&self, class: FailureClass, code: &str, what: &str) -> Failure {
        let place = match &self.path {
            Some(path) => format!("file `{}`", path.display()),
            None => "standard output".to_owned(),
        };
        Failure::new(class, code, format!("sink `{}`: {place}: {what}", self.name))
    }

    fn failure(&self, error: &io::Error) -> Failure {
        use FailureClass::{Fatal, Retry};
        use io::ErrorKind;
        let (class, code, what) = match error.kind() {
            ErrorKind::NotFound => (Fatal, "jsonl-open", "its directory does not exist; create it"),
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                (Fatal, "jsonl-read-only", "it cannot be written; give this user the right to")
            }
            ErrorKind::IsADirectory => (Fatal, "jsonl-not-a-file", "this is a directory; name a file"),
            ErrorKind::BrokenPipe => {
                (Fatal, "jsonl-pipe", "whoever read it is gone; start again with a reader")
            }
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                (Retry, "jsonl-full", "the disk or a quota is full; make room")
            }
            _ => (Retry, "jsonl-io", "writing failed; look at the disk"),
        };
        self.classified(class, code, &format!("{what} ({error})"))
    }
}

/// What follows the last line break.
fn tail(file: &mut File, length: u64) -> io::Result<Vec<u8>> {
    const STEP: u64 = 64 * 1024;
    let mut piece = Vec::new();
    // From here on there is no line break; one byte settles the ordinary case.
    let mut start = length;
    let mut step = 1;
    while start > 0 {
        let from = start.saturating_sub(step);
        read_range(file, from, start, &mut piece)?;
        if let Some(at) = memchr::memrchr(b'\n', &piece) {
            start = from + at as u64 + 1;
            break;
        }
        (start, step) = (from, STEP);
    }
    read_range(file, start, length, &mut piece)?;
    Ok(piece)
}

fn read_range(file: &mut File, from: u64, to: u64, into: &mut Vec<u8>) -> io::Result<()> {
    into.clear();
    file.seek(SeekFrom::Start(from))?;
    io::Read::by_ref(file).take(to - from).read_to_end(into)?;
    Ok(())
}

/// Makes the name of a new file as durable as its contents.
fn sync_directory(path: &std::path::Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or_else(|| std::path::Path::new("."));
    if cfg!(unix) { File::open(parent)?.sync_all() } else { Ok(()) }
}
