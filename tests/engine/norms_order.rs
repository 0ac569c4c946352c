//! Norms of tied weights: the cross term, whatever is delivered first.

use crate::common::{Random, config, weights};
use crate::norms::{assert_squares, batch, brute_force, gradients, square};
use ferret::backend::{Cpu, Memory};
use ferret::grad::{Norms, PerSample};
use ferret::model::{Decoder, GradSink, ParamId, Reduction, Rows, Slot};
use ferret::ops::Segments;

type T = <Cpu<f64> as Memory>::Tensor;

enum Factors {
    Outer(T, T),
    Rows(Vec<u32>, T),
    Vector(T),
}

/// Keeps every delivery, to be delivered again in another order.
struct Recorder(Vec<Delivery>);

struct Delivery {
    param: ParamId,
    samples: std::ops::Range<usize>,
    segments: Segments,
    factors: Factors,
}

impl Recorder {
    fn push(&mut self, param: ParamId, rows: Rows, factors: Factors) {
        self.0.push(Delivery { param, samples: rows.samples, segments: rows.segments.clone(), factors });
    }
}

impl Delivery {
    fn to(&self, b: &Cpu<f64>, sink: &mut impl GradSink<Cpu<f64>>) {
        let rows = Rows { samples: self.samples.clone(), segments: &self.segments };
        match &self.factors {
            Factors::Outer(x, dy) => sink.outer(b, self.param, Slot::Lent(x), Slot::Lent(dy), rows),
            Factors::Rows(ids, dy) => sink.rows(b, self.param, ids, Slot::Lent(dy), rows),
            Factors::Vector(dy) => sink.vector(b, self.param, Slot::Lent(dy), rows),
        }
    }
}

impl GradSink<Cpu<f64>> for Recorder {
    fn wants(&self, _: ParamId) -> bool {
        true
    }

    fn outer(&mut self, b: &Cpu<f64>, p: ParamId, x: Slot<Cpu<f64>>, dy: Slot<Cpu<f64>>, rows: Rows) {
        let factors = Factors::Outer(x.take(b), dy.take(b));
        self.push(p, rows, factors);
    }

    fn rows(&mut self, b: &Cpu<f64>, p: ParamId, ids: &[u32], dy: Slot<Cpu<f64>>, rows: Rows) {
        let factors = Factors::Rows(ids.to_vec(), dy.take(b));
        self.push(p, rows, factors);
    }

    fn vector(&mut self, b: &Cpu<f64>, p: ParamId, dy: Slot<Cpu<f64>>, rows: Rows) {
        let factors = Factors::Vector(dy.take(b));
        self.push(p, rows, factors);
    }
}

/// Without `2 <G_head, G_embedding>` the norm of a tied embedding is wrong, the factor with it, and a sample can move the sum
/// by more than the bound that the noise is scaled to.
#[test]
fn the_cross_term_of_tied_weights_is_in_the_norm_in_any_order_of_delivery() {
    let config = config(|c| c.positions = 300);
    let decoder = Decoder::new(Cpu::<f64>::new(), weights(config.clone(), 3)).unwrap();
    let (b, layout) = (&decoder.backend, &decoder.layout);
    // Longer than the rows of logits that exist at once: the head arrives in several deliveries.
    let batch = batch(&config, &[299, 3, 0, 200, 1, 299], 8);
    let samples = batch.segments.len();
    let mut recorder = Recorder(Vec::new());
    decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut recorder);
    let heads = recorder.0.iter().filter(|d| d.param == layout.head && matches!(d.factors, Factors::Outer(..)));
    assert!(heads.clone().count() > 1 && layout.head == layout.tokens);
    // Rows without a target have no logits: the head's rows are fewer than the embedding's.
    let scored = (0..samples).map(|i| batch.targets_of(i)).sum::<usize>();
    assert_eq!(heads.map(|d| d.segments.rows()).sum::<usize>(), scored);
    assert!(scored < batch.rows());
    let want = brute_force(&decoder, &batch);
    let mut random = Random::new(1);
    for round in 0..6 {
        match round {
            0 => (),
            1 => recorder.0.reverse(),
            _ => (1..recorder.0.len()).rev().for_each(|i| recorder.0.swap(i, random.below(i + 1))),
        }
        let mut norms = Norms::new(b, layout, samples, |_| true);
        recorder.0.iter().for_each(|d| d.to(b, &mut norms));
        assert_squares(layout, &norms, &want);
    }
    // The term is not negligible here, so that leaving it out would be seen.
    let mut parts = vec![0.0; samples];
    for which in [true, false] {
        let mut alone = PerSample::new(b, layout, samples);
        let of_head = |d: &&Delivery| d.param == layout.head && matches!(d.factors, Factors::Outer(..)) == which;
        recorder.0.iter().filter(of_head).for_each(|d| d.to(b, &mut alone));
        for (part, g) in parts.iter_mut().zip(gradients(layout, &alone, samples)) {
            *part += square(&g[layout.head.0]);
        }
    }
    let whole: Vec<f64> = want.iter().map(|g| square(&g[layout.head.0])).collect();
    assert!(parts.iter().zip(&whole).any(|(part, whole)| (part / whole - 1.0).abs() > 0.01), "{parts:?} {whole:?}");
}
