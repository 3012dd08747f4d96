//! What the fuzz targets have in common: an allocator that counts, so that what an input makes the host allocate is
//! held against the input's size.
//!
//! A target panics where an invariant does not hold; libFuzzer keeps the input. See `docs/testing.md`.

pub mod msgpack;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counting.
#[derive(Debug)]
pub struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grown(by: usize) {
    let now = NOW.fetch_add(by, Ordering::Relaxed).saturating_add(by);
    PEAK.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator as it is; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Runs a check of an input of `length` bytes.
///
/// # Panics
/// It held more than `base` bytes and `factor` for each byte of the input at once.
pub fn bounded<T>(length: usize, base: usize, factor: usize, check: impl FnOnce() -> T) -> T {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = check();
    let held = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    let limit = base + factor * length;
    assert!(held <= limit, "{length} bytes of input made it hold {held} bytes at once, more than {limit}");
    result
}
