//! The CPU: [`crate::ops`] on ndarray, with buffers that are reused from step to step.

use super::{Backend, cpu_update};
use crate::error::{Error, Result};
use crate::kernel::{self, Onto, Real, elementwise, matmul};
use crate::model::Activation;
use crate::ops::clip::{self, ClipFunction};
use crate::ops::compress::{self, Address};
use crate::ops::update::{Constants, Step};
use crate::ops::{
    self, Segments, activation, attention, cross_entropy, embedding, linear, norm, residual, sample_norm, token_stats,
};
use crate::rng::DirectionStream;
use ndarray::{Array2, ArrayView2, ArrayViewMut2, s};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Runs ops on the calling process' rayon threads.
#[derive(Clone, Default)]
pub struct Cpu<F: Real = f32> {
    pool: Arc<Pool<F>>,
}

/// Buffers waiting to be used again. After the first step of a run every tensor comes from here.
#[derive(Default)]
struct Pool<F> {
    free: Mutex<Vec<Vec<F>>>,
}

impl<F: Real> Pool<F> {
    /// A buffer of `len` elements: the smallest waiting one that fits without wasting more than half of it, content stale;
    /// else a new one, in exchange for the largest that was too small, so that the pool does not outgrow its use.
    fn take(&self, len: usize) -> Vec<F> {
        let mut free = self.free.lock().expect("no panic while holding the pool");
        let fits = |b: &Vec<F>| b.capacity() >= len && b.capacity() <= 2 * len.max(512);
        let best = (0..free.len()).filter(|&i| fits(&free[i])).min_by_key(|&i| free[i].capacity());
        if let Some(i) = best {
            let mut buffer = free.swap_remove(i);
            drop(free);
            buffer.resize(len, F::zero());
            return buffer;
        }
        let largest_too_small =
            (0..free.len()).filter(|&i| free[i].capacity() < len).max_by_key(|&i| free[i].capacity());
        if let Some(i) = largest_too_small {
            free.swap_remove(i);
        }
        drop(free);
        vec![F::zero(); len]
    }
}

/// A matrix on the CPU; its buffer goes back to the pool when it is dropped.
pub struct Tensor<F: Real> {
    array: Array2<F>,
    pool: Arc<Pool<F>>,
}

impl<F: Real> Drop for Tensor<F> {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.array).into_raw_vec_and_offset().0;
        if buffer.capacity() > 0 {
            self.pool.free.lock().expect("no panic while holding the pool").push(buffer);
        }
    }
}

impl<F: Real> Tensor<F> {
    /// The matrix.
    pub fn view(&self) -> ArrayView2<'_, F> {
        self.array.view()
    }

    /// The matrix, to write to.
    pub fn view_mut(&mut self) -> ArrayViewMut2<'_, F> {
        self.array.view_mut()
    }

    /// All elements, row-major.
    pub fn as_slice(&self) -> &[F] {
        ops::slice(&self.array)
    }

    /// All elements, row-major, to write to.
    pub fn as_slice_mut(&mut self) -> &mut [F] {
        ops::slice_mut(&mut self.array)
    }

    /// All elements, row-major, without a copy.
    pub fn into_vec(mut self) -> Vec<F> {
        std::mem::take(&mut self.array).into_raw_vec_and_offset().0
    }

    fn take_rows(&self, rows: Range<usize>) -> ArrayView2<'_, F> {
        self.array.slice(s![rows, ..])
    }
}

impl<F: Real> Cpu<F> {
    /// A backend with an empty pool.
    pub fn new() -> Self {
        Self::default()
    }

    /// A matrix with stale content, for ops that overwrite all of it.
    fn empty(&self, rows: usize, cols: usize) -> Tensor<F> {
        let array =
            Array2::from_shape_vec((rows, cols), self.pool.take(rows * cols)).expect("the length is the shape's");
        Tensor { array, pool: self.pool.clone() }
    }
}

impl<F: Real> Backend for Cpu<F> {
    type Tensor = Tensor<F>;

    fn shape(&self, x: &Tensor<F>) -> (usize, usize) {
        x.array.dim()
    }

    fn zeros(&self, rows: usize, cols: usize) -> Tensor<F> {
        let mut x = self.empty(rows, cols);
        x.as_slice_mut().fill(F::zero());
        x
    }

    fn upload(&self, rows: usize, cols: usize, data: Vec<f32>) -> Result<Tensor<F>> {
        let found = data.len();
        // A Vec<f32> is used as it is; other scalars are converted.
        let data = match bytemuck::allocation::try_cast_vec::<f32, F>(data) {
            Ok(same) if size_of::<F>() == size_of::<f32>() => same,
            Ok(_) => unreachable!("a cast keeps the element size"),
            Err((_, data)) => data.into_iter().map(|x| F::of(x as f64)).collect(),
        };
        let array = Array2::from_shape_vec((rows, cols), data)
            .map_err(|_| Error::usage(format!("{found} numbers do not fill a matrix of {rows} x {cols}")))?;
        Ok(Tensor { array, pool: self.pool.clone() })
    }

    fn download(&self, x: &Tensor<F>) -> Result<Vec<f32>> {
        Ok(x.as_slice().iter().map(|x| x.f64() as f32).collect())
    }

    fn download_all(&self, all: &[&Tensor<F>]) -> Result<Vec<Vec<f32>>> {
        all.iter().map(|x| self.download(x)).collect()
    }

    fn write(&self, x: &mut Tensor<F>, data: &[f32]) -> Result<()> {
        let to = x.as_slice_mut();
        if to.len() != data.len() {
            return Err(Error::usage(format!("{} numbers do not fill a matrix of {}", data.len(), to.len())));
        }
        to.iter_mut().zip(data).for_each(|(to, &from)| *to = F::of(from as f64));
        Ok(())
    }

    fn host_mut<'a>(&self, x: &'a mut Tensor<F>) -> Option<&'a mut [f32]> {
        bytemuck::try_cast_slice_mut(x.as_slice_mut()).ok().filter(|_| size_of::<F>() == size_of::<f32>())
    }

    fn direction(&self, direction: &DirectionStream, offset: usize, rows: usize, cols: usize) -> Tensor<F> {
        const PIECE: usize = 1 << 13;
        let mut u = self.empty(rows, cols);
        u.as_slice_mut().par_chunks_mut(PIECE).enumerate().for_each(|(i, out)| {
            let mut piece = [0.0; PIECE];
            let piece = &mut piece[..out.len()];
            direction.fill(offset + i * PIECE, piece);
            out.iter_mut().zip(piece).for_each(|(to, from)| *to = F::of(*from as f64));
        });
        u
    }

    fn direction_rows(&self, direction: &DirectionStream, offset: usize, ids: &[u32], cols: usize) -> Tensor<F> {
        let mut u = self.empty(ids.len(), cols);
        let rows = u.as_slice_mut().par_chunks_mut(cols.max(1)).zip(ids);
        rows.for_each_init(
            || vec![0.0; cols],
            |row, (out, &id)| {
                direction.fill(offset + id as usize * cols, row);
                out.iter_mut().zip(&*row).for_each(|(to, &from)| *to = F::of(from.into()));
            },
        );
        u
    }

    fn rows(&self, x: &Tensor<F>, rows: Range<usize>) -> Tensor<F> {
        let mut y = self.empty(rows.len(), x.array.ncols());
        y.array.assign(&x.take_rows(rows));
        y
    }

    fn finish(&self) -> Result<()> {
        Ok(())
    }

    fn chain<R: Send>(&self, ops: impl FnOnce() -> R + Send) -> R {
        kernel::awake(ops)
    }

    fn embed(&self, ids: &[u32], positions: &[u32], tokens: &Tensor<F>, wpe: &Tensor<F>) -> Tensor<F> {
        let mut x = self.empty(ids.len(), tokens.array.ncols());
        embedding::forward(ids, positions, tokens.view(), wpe.view(), x.view_mut());
        x
    }

    fn norm(&self, x: &Tensor<F>, gain: &Tensor<F>, bias: &Tensor<F>, eps: f64) -> (Tensor<F>, Tensor<F>) {
        let (n, c) = x.array.dim();
        let (mut y, mut stats) = (self.empty(n, c), self.empty(n, 2));
        norm::forward(x.view(), gain.as_slice(), bias.as_slice(), eps, y.view_mut(), stats.view_mut());
        (y, stats)
    }

    fn linear(&self, x: &Tensor<F>, w: &Tensor<F>, bias: Option<&Tensor<F>>) -> Tensor<F> {
        let mut y = self.empty(x.array.nrows(), w.array.ncols());
        linear::forward(x.view(), w.view(), bias.map(|b| b.as_slice()), y.view_mut());
        y
    }

    fn attention(&self, qkv: &Tensor<F>, segments: &Segments, heads: usize, scale: f64) -> (Tensor<F>, Tensor<F>) {
        let (n, c3) = qkv.array.dim();
        let (mut out, mut lse) = (self.empty(n, c3 / 3), self.empty(n, heads));
        attention::forward(qkv.view(), segments, heads, scale, out.view_mut(), lse.view_mut());
        (out, lse)
    }

    fn activation(&self, kind: Activation, x: &Tensor<F>) -> Tensor<F> {
        let mut y = self.empty(x.array.nrows(), x.array.ncols());
        activation::forward(kind, x.view(), y.view_mut());
        y
    }

    fn add(&self, x: &mut Tensor<F>, branch: &Tensor<F>) {
        residual::add(x.view_mut(), branch.view());
    }

    fn head(&self, h: &Tensor<F>, w: &Tensor<F>) -> Tensor<F> {
        let mut logits = self.empty(h.array.nrows(), w.array.nrows());
        matmul(h.view(), w.array.t(), Onto::Zero, logits.view_mut());
        logits
    }

    fn cross_entropy(&self, logits: &Tensor<F>, targets: &[u32], losses: &mut Tensor<F>, first: usize) {
        let losses = &mut losses.as_slice_mut()[first..first + targets.len()];
        cross_entropy::forward(logits.view(), targets, losses);
    }

    fn cross_entropy_backward(
        &self,
        logits: &mut Tensor<F>,
        targets: &[u32],
        weights: &[f32],
        losses: &mut Tensor<F>,
        first: usize,
    ) {
        let weights: Vec<F> = weights.iter().map(|&w| F::of(w as f64)).collect();
        let losses = &mut losses.as_slice_mut()[first..first + targets.len()];
        cross_entropy::forward_backward(logits.view_mut(), targets, &weights, losses);
    }

    fn head_input(&self, dlogits: &Tensor<F>, w: &Tensor<F>, dh: &mut Tensor<F>, first: usize) {
        let rows = first..first + dlogits.array.nrows();
        matmul(dlogits.view(), w.view(), Onto::Zero, dh.array.slice_mut(s![rows, ..]));
    }

    fn linear_input(&self, dy: &Tensor<F>, w: &Tensor<F>) -> Tensor<F> {
        let mut dx = self.empty(dy.array.nrows(), w.array.nrows());
        linear::backward_input(dy.view(), w.view(), dx.view_mut());
        dx
    }

    fn norm_backward(
        &self,
        dy: &mut Tensor<F>,
        x: &Tensor<F>,
        stats: &Tensor<F>,
        gain: &Tensor<F>,
        dgain: bool,
        dx: &mut Tensor<F>,
    ) {
        norm::backward(dy.view_mut(), x.view(), stats.view(), gain.as_slice(), dgain, dx.view_mut());
    }

    fn attention_backward(
        &self,
        dout: &Tensor<F>,
        out: &Tensor<F>,
        lse: &Tensor<F>,
        qkv: &Tensor<F>,
        segments: &Segments,
        heads: usize,
        scale: f64,
    ) -> Tensor<F> {
        let mut d = self.empty(qkv.array.nrows(), qkv.array.ncols());
        attention::backward(dout.view(), out.view(), lse.view(), qkv.view(), segments, heads, scale, d.view_mut());
        d
    }

    fn activation_backward(&self, kind: Activation, x: &Tensor<F>, dy: &mut Tensor<F>) {
        activation::backward(kind, x.view(), dy.view_mut());
    }

    fn add_outer(&self, x: &Tensor<F>, dy: &Tensor<F>, rows: Range<usize>, out: &mut Tensor<F>) {
        linear::backward_weight(x.take_rows(rows.clone()), dy.take_rows(rows), out.view_mut());
    }

    fn add_rows(&self, ids: &[u32], dy: &Tensor<F>, rows: Range<usize>, out: &mut Tensor<F>) {
        embedding::backward(&ids[rows.clone()], dy.take_rows(rows), out.view_mut());
    }

    fn add_columns(&self, dy: &Tensor<F>, rows: Range<usize>, out: &mut Tensor<F>) {
        linear::backward_bias(dy.take_rows(rows), out.as_slice_mut());
    }

    fn add_matmul(&self, x: &Tensor<F>, first: usize, w: &Tensor<F>, y: &mut Tensor<F>) {
        let columns = first..first + w.array.nrows();
        matmul(x.array.slice(s![.., columns]), w.view(), Onto::Itself, y.view_mut());
    }

    fn add_gather(&self, ids: &[u32], table: &Tensor<F>, y: &mut Tensor<F>) {
        for (mut row, &id) in y.array.rows_mut().into_iter().zip(ids) {
            row += &table.array.row(id as usize);
        }
    }

    fn add_vector(&self, v: &Tensor<F>, y: &mut Tensor<F>) {
        for mut row in y.array.rows_mut() {
            row += &v.array.row(0);
        }
    }

    fn add_head(&self, h: &Tensor<F>, w: &Tensor<F>, y: &mut Tensor<F>, first: usize) {
        let columns = first..first + w.array.nrows();
        matmul(h.view(), w.array.t(), Onto::Itself, y.array.slice_mut(s![.., columns]));
    }

    fn add_row_dots(&self, a: &Tensor<F>, b: &Tensor<F>, out: &mut Tensor<F>, first: usize) {
        let (rows, cols) = a.array.dim();
        let (a, b) = (a.as_slice(), b.as_slice());
        out.as_slice_mut()[first..first + rows].par_iter_mut().with_min_len(8).enumerate().for_each(|(i, out)| {
            let row = i * cols..(i + 1) * cols;
            *out += F::of(elementwise::dot_f64(&a[row.clone()], &b[row]));
        });
    }

    fn norm_jvp(
        &self,
        x: &Tensor<F>,
        x_dot: &Tensor<F>,
        stats: &Tensor<F>,
        gain: &Tensor<F>,
        gain_dot: Option<&Tensor<F>>,
        bias_dot: Option<&Tensor<F>>,
    ) -> Tensor<F> {
        let mut y_dot = self.empty(x.array.nrows(), x.array.ncols());
        let (gain_dot, bias_dot) = (gain_dot.map(|t| t.as_slice()), bias_dot.map(|t| t.as_slice()));
        norm::jvp(x.view(), x_dot.view(), stats.view(), gain.as_slice(), gain_dot, bias_dot, y_dot.view_mut());
        y_dot
    }

    fn attention_jvp(
        &self,
        qkv: &Tensor<F>,
        qkv_dot: &Tensor<F>,
        lse: &Tensor<F>,
        segments: &Segments,
        heads: usize,
        scale: f64,
    ) -> Tensor<F> {
        let mut out_dot = self.empty(qkv.array.nrows(), qkv.array.ncols() / 3);
        attention::jvp(qkv.view(), qkv_dot.view(), lse.view(), segments, heads, scale, out_dot.view_mut());
        out_dot
    }

    fn cross_entropy_jvp(
        &self,
        logits: &Tensor<F>,
        logits_dot: &Tensor<F>,
        targets: &[u32],
        losses_dot: &mut Tensor<F>,
        first: usize,
    ) {
        let losses_dot = &mut losses_dot.as_slice_mut()[first..first + targets.len()];
        cross_entropy::jvp(logits.view(), logits_dot.view(), targets, losses_dot);
    }

    fn attention_cached(
        &self,
        qkv: &Tensor<F>,
        keys: &mut Tensor<F>,
        values: &mut Tensor<F>,
        past: usize,
        heads: usize,
        scale: f64,
    ) -> Tensor<F> {
        let (n, c) = (qkv.array.nrows(), qkv.array.ncols() / 3);
        keys.array.slice_mut(s![past..past + n, ..]).assign(&qkv.array.slice(s![.., c..2 * c]));
        values.array.slice_mut(s![past..past + n, ..]).assign(&qkv.array.slice(s![.., 2 * c..]));
        let mut out = self.empty(n, c);
        let (k, v) = (keys.take_rows(0..past + n), values.take_rows(0..past + n));
        attention::forward_cached(qkv.array.slice(s![.., ..c]), k, v, heads, scale, out.view_mut());
        out
    }

    // Every sample's gradient norm, and clipping.

    fn add_outer_squares(
        &self,
        x: &Tensor<F>,
        dy: &Tensor<F>,
        segments: &Segments,
        squares: &mut Tensor<F>,
        first: usize,
    ) {
        sample_norm::add_outer(x.view(), dy.view(), segments, &mut squares.as_slice_mut()[first..][..segments.len()]);
    }

    fn add_row_squares(&self, ids: &[u32], dy: &Tensor<F>, segments: &Segments, squares: &mut Tensor<F>, first: usize) {
        sample_norm::add_rows(ids, dy.view(), segments, &mut squares.as_slice_mut()[first..][..segments.len()]);
    }

    fn add_tied_squares(
        &self,
        (x, dy, head_row): (&Tensor<F>, &Tensor<F>, usize),
        (ids, demb, row): (&[u32], &Tensor<F>, usize),
        segments: &Segments,
        squares: &mut Tensor<F>,
        first: usize,
    ) {
        let head = head_row..head_row + segments.rows();
        let rows = row..row + segments.rows();
        sample_norm::add_tied(
            x.take_rows(head.clone()),
            dy.take_rows(head),
            &ids[rows.clone()],
            demb.take_rows(rows),
            segments,
            &mut squares.as_slice_mut()[first..][..segments.len()],
        );
    }

    fn segment_sums(&self, dy: &Tensor<F>, segments: &Segments) -> Tensor<F> {
        let mut sums = self.empty(segments.len(), dy.array.ncols());
        sample_norm::segment_sums(dy.view(), segments, sums.view_mut());
        sums
    }

    fn clip_factors(&self, function: ClipFunction, bound: f64, squares: &mut Tensor<F>) {
        clip::factors(function, bound, squares.as_slice_mut());
    }

    fn scale_rows(&self, x: &mut Tensor<F>, segments: &Segments, factors: &Tensor<F>, first: usize) {
        clip::scale_rows(x.view_mut(), segments, &factors.as_slice()[first..][..segments.len()]);
    }

    fn drop_rows(&self, x: &mut Tensor<F>, segments: &Segments, factors: &Tensor<F>, first: usize) {
        clip::drop_rows(x.view_mut(), segments, &factors.as_slice()[first..][..segments.len()]);
    }

    // Audits.

    fn token_stats(&self, logits: &Tensor<F>, targets: &[u32], stats: &mut Tensor<F>, first: usize) {
        let rows = stats.array.slice_mut(s![first..first + targets.len(), ..]);
        token_stats::forward(logits.view(), targets, rows);
    }

    // Updates and compression.

    fn adamw(
        &self,
        w: &mut Tensor<F>,
        moments: (&mut Tensor<F>, &mut Tensor<F>),
        g: &Tensor<F>,
        first: usize,
        scale: f32,
        s: &Step,
        k: &Constants,
    ) {
        cpu_update::adamw(w, moments, g, first, scale, s, k);
    }

    fn adamw_idle(&self, w: &mut Tensor<F>, moments: (&mut Tensor<F>, &mut Tensor<F>), steps: &[Step], k: &Constants) {
        cpu_update::adamw_idle(w, moments, steps, k);
    }

    fn decay(&self, w: &mut Tensor<F>, steps: &[Step]) {
        cpu_update::decay(w, steps);
    }

    fn subtract(&self, w: &mut Tensor<F>, g: &Tensor<F>, first: usize, scale: f32) {
        cpu_update::subtract(w, g, first, scale);
    }

    fn signs(&self, x: &mut Tensor<F>, at: Address) {
        cpu_update::in_f32(x, |x| compress::signs(x, at));
    }

    fn signs_with_memory(&self, x: &mut Tensor<F>, memory: &mut Tensor<F>, at: Address) {
        cpu_update::in_f32(x, |x| cpu_update::in_f32(memory, |memory| compress::signs_with_memory(x, memory, at)));
    }

    fn quantise(&self, x: &mut Tensor<F>, bits: u32, at: Address) {
        cpu_update::in_f32(x, |x| compress::quantise(x, bits, at));
    }
}
