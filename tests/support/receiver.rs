//! An HTTP/1.1 receiver that answers by a script and keeps every byte it was sent.
//!
//! Written on the socket itself, so that it can also do what no server library does: say nothing, or close
//! in the middle of an answer.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinHandle,
};

/// What was received.
#[derive(Clone, Debug)]
pub struct Received {
    pub method: String,
    pub target: String,
    /// By lower-case name.
    pub headers: HashMap<String, String>,
    /// As sent.
    pub body: Vec<u8>,
}

impl Received {
    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.method, "POST");
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The ids of its documents.
    pub fn ids(&self) -> Vec<String> {
        let documents = self.json()["documents"].as_array().unwrap().clone();
        documents.iter().map(|document| document["id"].as_str().unwrap().to_owned()).collect()
    }
}

/// An answer without a body.
const EMPTY: &str = "HTTP/1.1 200 x\r\ncontent-length: 0\r\n\r\n";

/// What to do with a request.
pub enum Reply {
    /// Answer with a status, headers and a body.
    Status(u16, Vec<(&'static str, String)>, String),
    /// Take it, and say so after a while.
    Late(std::time::Duration),
    /// Take it, and say so once there is a permit for it.
    Held(Arc<Semaphore>),
    /// Keep the connection open and say nothing.
    Hang,
    /// Promise a body and close before its end.
    Cut,
    /// Close without a word.
    Close,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Self::Status(status, Vec::new(), String::new())
    }

    pub fn with_body(status: u16, body: &str) -> Self {
        Self::Status(status, Vec::new(), body.to_owned())
    }
}

pub struct Receiver {
    address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
    server: JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Receiver {
    /// Starts one. The script is given the request and its number, from 0.
    pub async fn start(script: impl Fn(&Received, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let (script, log) = (Arc::new(script), Arc::clone(&received));
        let server = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (script, log) = (Arc::clone(&script), Arc::clone(&log));
                connections.spawn(async move { serve(stream, &*script, &log).await });
            }
        });
        Self { address, received, server }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// The ids of all requests so far, request by request.
    pub fn ids(&self) -> Vec<Vec<String>> {
        self.received().iter().map(Received::ids).collect()
    }
}

async fn serve(
    mut stream: TcpStream,
    script: &(impl Fn(&Received, usize) -> Reply + ?Sized),
    log: &Mutex<Vec<Received>>,
) {
    while let Some(request) = read(&mut stream).await {
        let number = {
            let mut log = log.lock().unwrap();
            log.push(request.clone());
            log.len() - 1
        };
        let answer = match script(&request, number) {
            Reply::Status(status, headers, body) => {
                let mut answer = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n", body.len());
                for (name, value) in headers {
                    answer.push_str(&format!("{name}: {value}\r\n"));
                }
                answer + "\r\n" + &body
            }
            Reply::Late(pause) => {
                tokio::time::sleep(pause).await;
                EMPTY.to_owned()
            }
            Reply::Held(until) => {
                until.acquire().await.unwrap().forget();
                EMPTY.to_owned()
            }
            Reply::Hang => return std::future::pending().await,
            Reply::Close => return,
            Reply::Cut => {
                let start = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"rejec";
                stream.write_all(start).await.unwrap();
                return;
            }
        };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// One request with a `content-length`; none when the client has closed.
async fn read(stream: &mut TcpStream) -> Option<Received> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let start = lines.next().unwrap();
    assert!(start.ends_with(" HTTP/1.1"), "{start}");
    let headers: HashMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let mut body = vec![0; headers.get("content-length").map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await.ok()?;
    let mut words = start.split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    Some(Received { method, target, headers, body })
}
