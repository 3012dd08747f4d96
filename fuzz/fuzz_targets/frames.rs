//! Bytes of a connection: frames, and the replication payloads in them.
//!
//! Invariants: where the bytes were cut on their way makes no difference, to frames and to the error; memory follows
//! what has arrived; a payload that is read is written back to the same bytes.
#![no_main]

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use anabranch::pgoutput::frame::{Frame, postgres_micros};
use anabranch::postgres::Frames;
use anabranch_fuzz::bounded;
use libfuzzer_sys::fuzz_target;

/// Read-ahead is 256 KiB, and a buffer that grows is there twice for a moment.
const BASE: usize = 3 << 20;

/// All frames, and the error that ends them.
type Seen = (Vec<(u8, Vec<u8>)>, Option<String>);

fn cut(mut bytes: &[u8], piece: usize) -> Seen {
    let mut frames = Frames::new();
    let mut seen = Vec::new();
    while !bytes.is_empty() {
        let (mut part, rest) = bytes.split_at(piece.min(bytes.len()));
        bytes = rest;
        while !part.is_empty() {
            let filled = pin!(frames.fill(&mut part)).poll(&mut Context::from_waker(Waker::noop()));
            match filled {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return (seen, Some(error.to_string())),
                Poll::Pending => panic!("bytes in memory are there at once"),
            }
        }
        loop {
            let announced = frames.peek();
            match frames.next() {
                Ok(Some((kind, body))) => {
                    assert_eq!(announced, Ok(Some(kind)));
                    seen.push((kind, body.to_vec()));
                }
                Ok(None) => break,
                Err(error) => return (seen, Some(error.to_string())),
            }
        }
    }
    (seen, None)
}

fn written(frame: &Frame<'_>) -> Vec<u8> {
    match frame {
        Frame::XLogData { wal_start, wal_end, server_time, data } => [
            b"w",
            &wal_start.0.to_be_bytes()[..],
            &wal_end.0.to_be_bytes(),
            &postgres_micros(*server_time).to_be_bytes(),
            data,
        ]
        .concat(),
        Frame::Keepalive { wal_end, server_time, reply_requested } => [
            b"k",
            &wal_end.0.to_be_bytes()[..],
            &postgres_micros(*server_time).to_be_bytes(),
            &[u8::from(*reply_requested)],
        ]
        .concat(),
    }
}

fuzz_target!(|input: &[u8]| {
    let [piece, bytes @ ..] = input else { return };
    let whole = bounded(bytes.len(), BASE, 8, || cut(bytes, usize::MAX));
    for piece in [usize::from(*piece).max(1), 1 + usize::from(*piece % 5)] {
        assert_eq!(bounded(bytes.len(), BASE, 8, || cut(bytes, piece)), whole, "in pieces of {piece}");
    }
    for payload in whole.0.iter().map(|(_, body)| body.as_slice()).chain([bytes]) {
        let Ok(frame) = Frame::parse(payload) else { continue };
        let again = written(&frame);
        // A time near the end of its range is kept at the end.
        assert_eq!(Frame::parse(&again), Ok(frame));
        assert!(again.len() <= payload.len());
    }
});
