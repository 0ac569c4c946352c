//! How attention's heads lie in the columns of what is projected, and what each of them sees.

/// One tensor with `N` blocks of columns side by side, or `N` tensors: how a projection is stored decides which.
///
/// A fused qkv (GPT-2, BLOOM, Phi-3) is one tensor, Llama's are three; what follows reads both where they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts<T, const N: usize> {
    /// All blocks, side by side.
    Fused(T),
    /// A tensor a block.
    Split([T; N]),
}

/// Queries, keys, values.
pub type Qkv<T> = Parts<T, 3>;

/// The gate of a gated MLP, and what it gates.
pub type GateUp<T> = Parts<T, 2>;

impl<T, const N: usize> Parts<T, N> {
    /// The same, borrowed.
    pub fn as_ref(&self) -> Parts<&T, N> {
        match self {
            Parts::Fused(x) => Parts::Fused(x),
            Parts::Split(x) => Parts::Split(x.each_ref()),
        }
    }

    /// `f` of every tensor there is.
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> Parts<U, N> {
        match self {
            Parts::Fused(x) => Parts::Fused(f(x)),
            Parts::Split(x) => Parts::Split(x.map(f)),
        }
    }

    /// Every tensor there is: one or `N`.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        match self {
            Parts::Fused(x) => std::slice::from_ref(x).iter(),
            Parts::Split(x) => x.iter(),
        }
    }
}

impl<T, U, const N: usize> Parts<(T, U), N> {
    /// Two of one.
    pub fn unzip(self) -> (Parts<T, N>, Parts<U, N>) {
        match self {
            Parts::Fused((t, u)) => (Parts::Fused(t), Parts::Fused(u)),
            Parts::Split(pairs) => {
                let mut second = Vec::with_capacity(N);
                let first = pairs.map(|(t, u)| {
                    second.push(u);
                    t
                });
                let Ok(second) = second.try_into() else { unreachable!("as many as the first") };
                (Parts::Split(first), Parts::Split(second))
            }
        }
    }
}

impl<T: Copy, const N: usize> Parts<T, N> {
    /// Tensor and first column of every block, for blocks of these widths.
    pub fn columns(self, widths: [usize; N]) -> [(T, usize); N] {
        match self {
            Parts::Split(x) => x.map(|x| (x, 0)),
            Parts::Fused(x) => {
                let mut first = 0;
                widths.map(|width| {
                    first += width;
                    (x, first - width)
                })
            }
        }
    }
}

/// The heads of an attention. Query head h reads key and value head `h / (heads / kv_heads)`, where it lies: nothing is repeated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heads {
    /// Heads H of the queries.
    pub heads: usize,
    /// Heads of keys and values; divides `heads`.
    pub kv_heads: usize,
    /// Columns of a head.
    pub width: usize,
    /// What scores are multiplied by.
    pub scale: f64,
    /// How many keys a query sees, its own included and the nearest ones; all before it where there is no window.
    pub window: Option<usize>,
    /// Whether scores fall with the distance (ALiBi): `slope_h (j - i)` is added to the score of key j for query i.
    pub alibi: bool,
}

impl Heads {
    /// `heads` heads of `width` columns that see everything before them, as GPT-2's.
    pub fn plain(heads: usize, width: usize, scale: f64) -> Self {
        Self { heads, kv_heads: heads, width, scale, window: None, alibi: false }
    }

    /// Columns of queries, keys and values.
    pub fn columns(&self) -> [usize; 3] {
        [self.heads * self.width, self.kv_heads * self.width, self.kv_heads * self.width]
    }

    /// Query heads that share a head of keys and values.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The first key that a query at `position` sees.
    pub fn first_key(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// ALiBi's slope of every query head; zeros without it. As in BLOOM: with P the largest power of two that is not above H, head
    /// h < P has 2^(-8 (h + 1) / P), and the others the odd powers of 2^(-4 / P): 2^(-4 (2 (h - P) + 1) / P).
    pub fn slopes(&self) -> Vec<f64> {
        if !self.alibi {
            return vec![0.0; self.heads];
        }
        let power = 1 << self.heads.max(1).ilog2();
        let slope = |h: usize| {
            let exponent = if h < power { 8 * (h + 1) } else { 4 * (2 * (h - power) + 1) };
            libm::exp2(-(exponent as f64) / power as f64)
        };
        (0..self.heads).map(slope).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_those_of_bloom() {
        let slopes = |heads| Heads { alibi: true, ..Heads::plain(heads, 1, 1.0) }.slopes();
        assert_eq!(slopes(8), [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]);
        assert_eq!(slopes(1), [2f64.powi(-8)]);
        // transformers: 2^(-8/4) .. for the first four, then 2^(-4/4), 2^(-12/4).
        assert_eq!(slopes(6), [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]);
        assert_eq!(Heads::plain(3, 1, 1.0).slopes(), [0.0; 3]);
    }

    #[test]
    fn blocks_lie_side_by_side_or_apart() {
        let heads = Heads { kv_heads: 2, ..Heads::plain(6, 5, 1.0) };
        assert_eq!(Qkv::Fused('x').columns(heads.columns()), [('x', 0), ('x', 30), ('x', 40)]);
        assert_eq!(Qkv::Split(['q', 'k', 'v']).columns(heads.columns()), [('q', 0), ('k', 0), ('v', 0)]);
        assert_eq!(heads.group(), 3);
        assert_eq!(Heads { window: Some(3), ..heads }.first_key(7), 5);
        assert_eq!(Heads { window: Some(3), ..heads }.first_key(1), 0);
    }
}
