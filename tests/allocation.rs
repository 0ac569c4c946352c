//! After the second step a training step asks the allocator for no buffer: tensors come back out of the backend's pool, and what the
//! optimizer's moments took from it in the first step has been made up for in the second.

use ferret::backend::Cpu;
use ferret::grad::Sum;
use ferret::model::init::Preset;
use ferret::model::{Batch, Config, Decoder, Reduction, Weights};
use ferret::optim::{Gradient, Hyper, Schedule, Silent, Updates};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Allocations of at least this many bytes count: smaller ones are lists of tasks and views.
const LARGE: usize = 16 << 10;

static BYTES: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: everything is handed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LARGE {
            BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_step_allocates_nothing_once_the_pool_is_full() {
    let config = Config {
        vocab: 400,
        positions: 64,
        width: 64,
        layers: 3,
        heads: 4,
        kv_heads: 4,
        head_width: 16,
        inner: 256,
        eos: None,
        ..Preset::Tiny.config()
    };
    let mut weights = Weights::zeros(config);
    for (i, tensor) in weights.tensors.iter_mut().enumerate() {
        tensor.iter_mut().enumerate().for_each(|(j, w)| *w = ((i * 31 + j * 17) % 101) as f32 / 1000.0);
    }
    let rows: Vec<Vec<u32>> = (0..4).map(|i| (0..64).map(|j| (i * 77 + j * 13) % 400).collect()).collect();
    let batch = Batch::new((0..4).map(|i| (rows[i].as_slice(), rows[(i + 1) % 4].as_slice())));
    let row_weights = batch.weights(Reduction::SampleMean);
    // One thread: with more, which of them warms its packing buffers in the first step is chance.
    rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap().install(|| {
        let mut decoder = Decoder::new(Cpu::<f32>::new(), weights).unwrap();
        let layout = decoder.layout.clone();
        let mut adamw = Updates::adamw(layout.len(), 8, Hyper::new(1e-3, 0.0), Schedule::Constant, Silent::Zero);
        let mut taken = Vec::new();
        for step in 0..4 {
            let before = BYTES.load(Ordering::Relaxed);
            let mut sum = Sum::new(&decoder.backend, &layout, |_| true);
            drop(decoder.backward(&batch, &row_weights, &mut sum));
            for p in layout.ids() {
                let gradient = Gradient::Whole { tensor: sum.get(p).unwrap(), scale: 1.0 };
                adamw.step(&decoder.backend, step, p, &mut decoder.params[p.0], gradient);
            }
            taken.push(BYTES.load(Ordering::Relaxed) - before);
        }
        assert!(taken[0] > 1 << 20, "the first step fills the pool: {taken:?}");
        assert!(taken[1] < taken[0], "the second only replaces what the moments took: {taken:?}");
        assert_eq!(taken[2..], [0, 0], "bytes in large allocations, step by step: {taken:?}");
    });
}
