//! The named parameters of a decoder, in checkpoint order.
//!
//! A parameter has one [`ParamId`] however often the decoder uses it: with tied weights the output head *is* the token
//! embedding. Everything that touches parameters (sinks, groups, optimizers, checkpoints) speaks of ids.

use super::config::Config;

/// Index of a parameter in its [`Layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub usize);

/// Where in the decoder a parameter is used first on the way back from the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Token or position embedding: the gradient needs the whole way down.
    Embedding,
    /// Block of this index.
    Block(usize),
    /// Final norm or separate output head.
    Top,
}

/// Name, shape and place of one parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// The checkpoint's tensor name, without a `transformer.` prefix.
    pub name: String,
    /// `[in, out]` for linear layers (GPT-2's Conv1D), `[V, C]` for embeddings, `[C]` for vectors.
    pub shape: Vec<usize>,
    /// Where it is used.
    pub place: Place,
}

impl ParamSpec {
    /// Number of scalars.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the parameter holds no scalar at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The shape as a matrix: vectors are one row.
    pub fn matrix(&self) -> (usize, usize) {
        match self.shape[..] {
            [rows, cols] => (rows, cols),
            _ => (1, self.len()),
        }
    }
}

/// The parameters of one block.
#[derive(Clone, Copy, Debug)]
pub struct BlockIds {
    /// `ln_1.weight`, `ln_1.bias`.
    pub norm_1: (ParamId, ParamId),
    /// `attn.c_attn`: queries, keys and values in one product.
    pub qkv: (ParamId, ParamId),
    /// `attn.c_proj`.
    pub attn_out: (ParamId, ParamId),
    /// `ln_2.weight`, `ln_2.bias`.
    pub norm_2: (ParamId, ParamId),
    /// `mlp.c_fc`.
    pub mlp_in: (ParamId, ParamId),
    /// `mlp.c_proj`.
    pub mlp_out: (ParamId, ParamId),
}

/// All parameters of a decoder.
#[derive(Clone, Debug)]
pub struct Layout {
    specs: Vec<ParamSpec>,
    /// Token embedding `wte.weight` `[V, C]`.
    pub tokens: ParamId,
    /// Position embedding `wpe.weight` `[positions, C]`.
    pub positions: ParamId,
    /// One entry a block.
    pub blocks: Vec<BlockIds>,
    /// `ln_f.weight`, `ln_f.bias`.
    pub norm_f: (ParamId, ParamId),
    /// Output head `[V, C]`; the same id as `tokens` when tied.
    pub head: ParamId,
}

impl Layout {
    /// GPT-2's parameters for `config`, in the order of its checkpoints.
    pub fn new(config: &Config) -> Self {
        let c = config.width;
        let mut specs = Vec::new();
        let mut add = |name: String, shape: &[usize], place| {
            specs.push(ParamSpec { name, shape: shape.to_vec(), place });
            ParamId(specs.len() - 1)
        };
        let tokens = add("wte.weight".into(), &[config.vocab, c], Place::Embedding);
        let positions = add("wpe.weight".into(), &[config.positions, c], Place::Embedding);
        let blocks = (0..config.layers)
            .map(|l| {
                let mut pair = |name: &str, weight: &[usize], bias: usize| {
                    (
                        add(format!("h.{l}.{name}.weight"), weight, Place::Block(l)),
                        add(format!("h.{l}.{name}.bias"), &[bias], Place::Block(l)),
                    )
                };
                BlockIds {
                    norm_1: pair("ln_1", &[c], c),
                    qkv: pair("attn.c_attn", &[c, 3 * c], 3 * c),
                    attn_out: pair("attn.c_proj", &[c, c], c),
                    norm_2: pair("ln_2", &[c], c),
                    mlp_in: pair("mlp.c_fc", &[c, config.inner], config.inner),
                    mlp_out: pair("mlp.c_proj", &[config.inner, c], c),
                }
            })
            .collect();
        let norm_f = (add("ln_f.weight".into(), &[c], Place::Top), add("ln_f.bias".into(), &[c], Place::Top));
        let head = if config.tied { tokens } else { add("lm_head.weight".into(), &[config.vocab, c], Place::Top) };
        Self { specs, tokens, positions, blocks, norm_f, head }
    }

    /// Number of parameters (tensors).
    pub fn len(&self) -> usize {
        self.specs.len()
    }

    /// Never: every decoder has embeddings.
    pub fn is_empty(&self) -> bool {
        self.specs.is_empty()
    }

    /// Number of scalars over all parameters.
    pub fn scalars(&self) -> usize {
        self.specs.iter().map(ParamSpec::len).sum()
    }

    /// Name, shape and place of `id`.
    pub fn spec(&self, id: ParamId) -> &ParamSpec {
        &self.specs[id.0]
    }

    /// All ids in checkpoint order.
    pub fn ids(&self) -> impl Iterator<Item = ParamId> + use<> {
        (0..self.specs.len()).map(ParamId)
    }

    /// All specs in checkpoint order.
    pub fn specs(&self) -> &[ParamSpec] {
        &self.specs
    }
}
