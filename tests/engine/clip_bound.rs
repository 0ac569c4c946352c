//! No record moves the clipped sum by more than the bound, whatever the record, the weights and the rounding of f32.
//!
//! Where the gradients of a record's tokens cancel, its norm is a small difference of large numbers, and so is the update that is applied.
//! Each test takes a record's factors as they were delivered, and checks against C the norm, in f64, of their product under the factor
//! used, and of the update that [`Norms::clipped_sum`] made of it alone.

#[cfg(feature = "gpu")]
use crate::common::gpus;
use crate::common::{Random, config, weights};
use ferret::backend::{Backend, Cpu};
use ferret::grad::{ClipFunction, Clipping, Norms, Partition, Scaled, Sum};
use ferret::model::{Batch, Config, Decoder, GradSink, Layout, ParamId, Reduction, Rows, Slot, Weights};
use ferret::ops::Segments;

const ALLOWED: f64 = 1.0 + 1e-5;

#[cfg(not(feature = "gpu"))]
fn gpus() -> &'static [Cpu<f32>] {
    &[]
}

/// A matrix in host memory.
#[derive(Clone)]
struct Matrix {
    rows: usize,
    cols: usize,
    data: Vec<f32>,
}

impl Matrix {
    fn new(rows: usize, cols: usize, mut f: impl FnMut(usize, usize) -> f64) -> Self {
        Self { rows, cols, data: (0..rows * cols).map(|i| f(i / cols, i % cols) as f32).collect() }
    }

    fn up<B: Backend>(&self, b: &B) -> B::Tensor {
        b.upload(self.rows, self.cols, self.data.clone()).unwrap()
    }

    fn scaled(&self, factor: f32) -> Self {
        Self { data: self.data.iter().map(|x| if factor == 0.0 { 0.0 } else { x * factor }).collect(), ..*self }
    }
}

enum Factors {
    Outer(Matrix, Matrix),
    Rows(Vec<u32>, Matrix),
    Vector(Matrix),
}

/// Everything delivered for one record, copied to the host.
struct Recorder(Vec<(ParamId, Factors)>);

impl Recorder {
    fn take<B: Backend>(b: &B, x: Slot<B>) -> Matrix {
        let (rows, cols) = b.shape(x.get());
        Matrix { rows, cols, data: b.download(x.get()).unwrap() }
    }

    fn to<B: Backend>(&self, b: &B, sink: &mut impl GradSink<B>) {
        for (p, factors) in self.0.iter() {
            let (Factors::Outer(dy, _) | Factors::Rows(_, dy) | Factors::Vector(dy)) = factors;
            let segments = Segments::from_lengths([dy.rows]);
            let rows = Rows { samples: 0..1, segments: &segments };
            match factors {
                Factors::Outer(x, dy) => sink.outer(b, *p, Slot::Given(x.up(b)), Slot::Given(dy.up(b)), rows),
                Factors::Rows(ids, dy) => sink.rows(b, *p, ids, Slot::Given(dy.up(b)), rows),
                Factors::Vector(dy) => sink.vector(b, *p, Slot::Given(dy.up(b)), rows),
            }
        }
    }

    /// The square of the norm of p's gradient in f64, if the factors that are scaled were scaled by `factor` in f32. Biases are kept as
    /// their sums over rows, which are not part of it.
    fn square(&self, p: ParamId, cols: usize, factor: f32) -> f64 {
        let mut g: std::collections::HashMap<usize, Vec<f64>> = Default::default();
        for (_, factors) in self.0.iter().filter(|(q, _)| *q == p) {
            match factors {
                Factors::Outer(x, dy) => {
                    let (x, dy) =
                        if x.cols < dy.cols { (x.scaled(factor), dy.clone()) } else { (x.clone(), dy.scaled(factor)) };
                    for t in 0..x.rows {
                        for i in 0..x.cols {
                            let row = g.entry(i).or_insert_with(|| vec![0.0; cols]);
                            for (g, &dy) in row.iter_mut().zip(&dy.data[t * cols..]) {
                                *g += f64::from(x.data[t * x.cols + i]) * f64::from(dy);
                            }
                        }
                    }
                }
                Factors::Rows(ids, dy) => {
                    let dy = dy.scaled(factor);
                    for (t, &id) in ids.iter().enumerate() {
                        let row = g.entry(id as usize).or_insert_with(|| vec![0.0; cols]);
                        row.iter_mut().zip(&dy.data[t * cols..]).for_each(|(g, &dy)| *g += f64::from(dy));
                    }
                }
                Factors::Vector(_) => return 0.0,
            }
        }
        g.values().flatten().map(|g| g * g).sum()
    }
}

impl<B: Backend> GradSink<B> for Recorder {
    fn wants(&self, _: ParamId) -> bool {
        true
    }

    fn outer(&mut self, b: &B, p: ParamId, x: Slot<B>, dy: Slot<B>, _: Rows) {
        self.0.push((p, Factors::Outer(Self::take(b, x), Self::take(b, dy))));
    }

    fn rows(&mut self, b: &B, p: ParamId, ids: &[u32], dy: Slot<B>, _: Rows) {
        self.0.push((p, Factors::Rows(ids.to_vec(), Self::take(b, dy))));
    }

    fn vector(&mut self, b: &B, p: ParamId, dy: Slot<B>, _: Rows) {
        self.0.push((p, Factors::Vector(Self::take(b, dy))));
    }
}

/// Every rule and style for the parameters that were delivered, with the groups that each clips together.
fn clippings(params: &[ParamId], bound: f64) -> Vec<(Clipping, Vec<Vec<ParamId>>, String)> {
    let thirds: Vec<Vec<ParamId>> = (0..3)
        .map(|g| params.iter().copied().filter(|p| p.0 % 3 == g).collect::<Vec<_>>())
        .filter(|group| !group.is_empty())
        .collect();
    let mut all = Vec::new();
    for function in [ClipFunction::Abadi, ClipFunction::Automatic] {
        for (style, groups) in [
            (Partition::Flat, vec![params.to_vec()]),
            (Partition::PerLayer, params.iter().map(|&p| vec![p]).collect()),
            (Partition::Groups(thirds.clone()), thirds.clone()),
        ] {
            let what = format!("{function:?}, {style:?}");
            all.push((Clipping::new(function, style, bound).unwrap(), groups, what));
        }
    }
    all
}

/// Clip the record to `bound` in every way and check what is applied. Returns the largest norm applied under flat clipping by Abadi's rule.
fn check<B: Backend>(b: &B, layout: &Layout, record: &Recorder, bound: f64, label: &str) -> f64 {
    let mut params: Vec<ParamId> = record.0.iter().map(|(p, _)| *p).collect();
    params.sort();
    params.dedup();
    let mut flat = 0.0;
    for (i, (clipping, groups, what)) in clippings(&params, bound).into_iter().enumerate() {
        let mut norms = Norms::new(b, layout, 1, |p| params.contains(&p));
        record.to(b, &mut norms);
        let factors = clipping.factors(b, &norms).unwrap();
        let used: Vec<f32> = params.iter().map(|&p| b.download(factors.get(p).unwrap()).unwrap()[0]).collect();
        let mut sum = Sum::new(b, layout, |p| params.contains(&p));
        norms.clipped_sum(b, &factors, &mut sum);
        let share = bound / (groups.len() as f64).sqrt();
        for group in &groups {
            let (mut applied, mut product, mut exact) = (0.0, 0.0, 0.0);
            for &p in group {
                let factor = used[params.iter().position(|&q| q == p).unwrap()];
                let update = b.download(sum.get(p).unwrap()).unwrap();
                applied += update.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>();
                let cols = layout.spec(p).matrix().1;
                product += record.square(p, cols, factor);
                let whole = record.square(p, cols, 1.0) * f64::from(factor).powi(2);
                exact += if factor == 0.0 { 0.0 } else { whole };
            }
            let [applied, product, exact] = [applied, product, exact].map(f64::sqrt);
            assert!(applied <= share * ALLOWED, "{label}, {what}: an update of norm {applied}, bound {share}");
            assert!(product <= share * ALLOWED, "{label}, {what}: factors with norm {product}, bound {share}");
            assert!(exact <= share * ALLOWED, "{label}, {what}: a gradient of norm {exact}, bound {share}");
            if i == 0 {
                flat = applied;
            }
        }
    }
    flat
}

/// `check` on the CPU and on every GPU, with what each of them delivers.
fn everywhere(weights: &Weights, batch: &Batch, label: &str) {
    fn on<B: Backend + Clone>(b: &B, weights: &Weights, batch: &Batch, label: &str) {
        let decoder = Decoder::new(b.clone(), weights.clone()).unwrap();
        // Of tensors as they are, and of tensors times public scales.
        let scales: Vec<f32> = (0..decoder.layout.len()).map(|p| [1.0, 37.0, 1e-3, 16.0, 0.7][p % 5]).collect();
        for scales in [None, Some(&scales[..])] {
            let mut record = Recorder(Vec::new());
            let mut sink = Scaled::new(&mut record, scales);
            decoder.backward(batch, &batch.weights(Reduction::SampleSum), &mut sink);
            check(b, &decoder.layout, &record, 1.0, &format!("{label}, scaled: {}", scales.is_some()));
        }
    }
    on(&Cpu::<f32>::new(), weights, batch, &format!("{label}, cpu"));
    for (gpu, what) in gpus().iter().zip(["gpu", "gpu in windows"]) {
        on(gpu, weights, batch, &format!("{label}, {what}"));
    }
}

/// A base model whose state before the head is nearly the same vector of norm `size` for every token, and which thinks that tokens 1 and 2 follow
/// with probability 1/2 (1 + imbalance) and 1/2 (1 - imbalance): a record that is taught first the one and then the other has tokens whose gradients cancel.
fn crafted(config: Config, size: f64, imbalance: f64, seed: u64) -> Weights {
    let mut weights = weights(config.clone(), seed);
    let layout = weights.layout.clone();
    let c = config.width;
    let direction: Vec<f64> = (0..c).map(|j| if (j + seed as usize).is_multiple_of(3) { 1.0 } else { -0.5 }).collect();
    let norm = direction.iter().map(|x| x * x).sum::<f64>().sqrt();
    let (gain, bias) = (layout.norm_f.weight, layout.norm_f.bias.unwrap());
    weights.tensors[gain.0].fill(1e-3);
    for (w, d) in weights.tensors[bias.0].iter_mut().zip(&direction) {
        *w = (size * d / norm) as f32;
    }
    // Logits 20 and 20 + ln((1 + i) / (1 - i)), and -20 for all others.
    let step = ((1.0 + imbalance) / (1.0 - imbalance)).ln();
    for (id, row) in weights.tensors[layout.head.0].chunks_exact_mut(c).enumerate() {
        let logit = match id {
            1 => 20.0 + step,
            2 => 20.0,
            _ => -20.0,
        };
        for (w, d) in row.iter_mut().zip(&direction) {
            *w = (logit * d / norm / size) as f32;
        }
    }
    weights
}

/// The record {"tokens": [1, 1, 2], "learn": [false, true, true]}.
fn one_then_two() -> Batch {
    Batch::new([(&[1u32, 1][..], &[1u32, 2][..])])
}

#[test]
fn a_crafted_base_model_cannot_carry_a_record_past_the_bound() {
    for tied in [true, false] {
        for size in [1e3, 1e4, 1e5, 3e6] {
            for (seed, imbalance) in [0.0, 1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 1e-2, 0.3].into_iter().enumerate() {
                let weights = crafted(config(|c| c.tied = tied), size, imbalance, seed as u64);
                everywhere(&weights, &one_then_two(), &format!("tied {tied}, |h| {size:e}, imbalance {imbalance:e}"));
            }
        }
    }
}

#[test]
fn records_of_random_models_stay_within_the_bound_and_are_not_clipped_to_less() {
    let mut random = Random::new(4);
    for (round, scale) in [1.0, 0.05, 4.0, 30.0].into_iter().enumerate() {
        let config = config(|c| {
            c.tied = round % 2 == 0;
            c.positions = 70;
            (c.width, c.inner, c.vocab) = (24, 50, 90);
        });
        let mut weights = weights(config.clone(), round as u64);
        weights.tensors.iter_mut().flatten().for_each(|w| *w *= scale);
        for length in [1, 2, 9, 70] {
            let ids: Vec<u32> = (0..length).map(|_| random.below(1 + config.vocab / 9) as u32).collect();
            let targets: Vec<u32> = (0..length).map(|_| random.below(config.vocab) as u32).collect();
            let batch = Batch::new([(&ids[..], &targets[..])]);
            everywhere(&weights, &batch, &format!("scale {scale}, length {length}"));
        }
        // An ordinary record loses next to nothing: its clipped norm is the bound, but for the slack of T = 70.
        let ids: Vec<u32> = (0..70).map(|_| random.below(config.vocab) as u32).collect();
        let batch = Batch::new([(&ids[..69], &ids[1..])]);
        let bound = 1e-2;
        let decoder = Decoder::new(Cpu::<f32>::new(), weights.clone()).unwrap();
        let mut record = Recorder(Vec::new());
        decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut record);
        let norm = check(&decoder.backend, &decoder.layout, &record, bound, "ordinary");
        assert!(norm >= bound * (1.0 - 2e-4), "cpu: clipped to {norm} instead of {bound}");
        for gpu in gpus() {
            let norm = check(gpu, &decoder.layout, &record, bound, "ordinary");
            assert!(norm >= bound * (1.0 - 5e-3), "gpu: clipped to {norm} instead of {bound}");
        }
    }
}

/// Factors of an output head (and embedding) that cancel down to `left` of their size, at the scales `sizes`.
fn cancelling(
    layout: &Layout,
    shape: (usize, usize, usize),
    sizes: [f64; 2],
    left: f64,
    random: &mut Random,
) -> Recorder {
    let (rows, v, c) = shape;
    let common: Vec<f64> = (0..c).map(|_| random.signed()).collect();
    let shared: Vec<f64> = (0..v).map(|_| random.signed()).collect();
    // Rows nearly alike on one side; on the other, signs that add up to nothing.
    let sign = |t: usize| match rows % 2 {
        1 if t + 1 == rows => 0.0,
        _ => 1.0 - 2.0 * (t % 2) as f64,
    };
    let x = Matrix::new(rows, v, |t, i| sizes[0] * sign(t) * (shared[i] + left * random.signed()));
    let dy = Matrix::new(rows, c, |_, j| sizes[1] * (common[j] + left * random.signed()));
    Recorder(vec![(layout.head, Factors::Outer(x, dy))])
}

#[test]
fn factors_that_cancel_are_bounded_by_what_rounding_leaves_of_them() {
    let mut random = Random::new(11);
    for (rows, v, c) in [(2, 23, 12), (7, 3, 40), (40, 30, 31), (64, 700, 48), (130, 16, 16), (300, 9, 5)] {
        let config = config(|f| {
            f.tied = false;
            (f.vocab, f.width, f.heads, f.inner) = (v, c, 1, 4);
        });
        let layout = Layout::new(&config);
        for sizes in [[1.0, 1.0], [1.0, 1e5], [1e-6, 1e9], [1e-19, 3e17], [1e17, 1e-18], [1e10, 1e10], [1e25, 1e-20]] {
            for left in [0.0, 1e-8, 1e-6, 1e-4, 1e-2] {
                let record = cancelling(&layout, (rows, v, c), sizes, left, &mut random);
                let label = format!("{rows} x {v} x {c}, sizes {sizes:?}, {left:e} left");
                check(&Cpu::<f32>::new(), &layout, &record, 1.0, &label);
                for gpu in gpus().iter().take(1) {
                    check(gpu, &layout, &record, 1.0, &format!("{label}, gpu"));
                }
            }
        }
    }
}

#[test]
fn a_head_that_cancels_its_embedding_is_bounded() {
    let mut random = Random::new(12);
    for (rows, v, c) in [(1, 7, 5), (5, 23, 12), (33, 40, 31), (90, 11, 16)] {
        let layout = Layout::new(&config(|f| {
            f.tied = true;
            (f.vocab, f.width, f.heads, f.inner) = (v, c, 1, 4);
        }));
        for size in [1.0, 1e3, 1e5, 1e8] {
            for left in [0.0, 1e-7, 1e-5, 1e-3, 0.1] {
                // dlogits pick out the rows that the embedding takes back.
                let ids: Vec<u32> = (0..rows).map(|_| random.below(v) as u32).collect();
                let x = Matrix::new(rows, v, |t, i| if ids[t] as usize == i { 1.0 } else { 0.0 });
                let dy = Matrix::new(rows, c, |_, _| size * random.signed());
                let back = Matrix::new(rows, c, |t, j| -f64::from(dy.data[t * c + j]) * (1.0 + left * random.signed()));
                let mut record =
                    Recorder(vec![(layout.head, Factors::Outer(x, dy)), (layout.tokens, Factors::Rows(ids, back))]);
                for order in ["head first", "embedding first"] {
                    let label = format!("{rows} x {v} x {c}, size {size:e}, {left:e} left, {order}");
                    check(&Cpu::<f32>::new(), &layout, &record, 1.0, &label);
                    if let Some(gpu) = gpus().first() {
                        check(gpu, &layout, &record, 1.0, &format!("{label}, gpu"));
                    }
                    record.0.reverse();
                }
            }
        }
    }
}
