//! Records, and the token sequences the decoder learns from.

/// One tokenised record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Example {
    /// The tokens, at most the context long.
    pub ids: Vec<u32>,
    /// Whether `ids[i]` counts in the loss (predicted from the tokens before it). `learn[0]` is never true.
    pub learn: Vec<bool>,
}

impl Example {
    /// A record whose every token but the first counts.
    pub fn all(ids: Vec<u32>) -> Self {
        let learn = (0..ids.len()).map(|i| i > 0).collect();
        Self { ids, learn }
    }

    /// How many tokens count in the loss.
    pub fn targets(&self) -> usize {
        self.learn.iter().filter(|&&l| l).count()
    }
}
