//! What a statement charges in nats, by the rules of its version.

use super::super::event::{Fires, Sampler};
use super::super::guarantee::Guarantee;
use super::super::mi;
use super::{Released, Statement};
use crate::error::Result;

/// Who counts nats.
const NATS: &str = "mutual information";

impl Statement {
    /// Charge what was released in nats, whatever else is promised; `fires` tells how bits shared batches, and is of no use to sums.
    ///
    /// Bits, flipped bits and noisy signs: what the bits of each batch can tell together, with s K ln 2 beside it, and for bits without noise the
    /// (0, delta) that their batches add up to. Sums: the divergence from the law without the record. Gradients as they are: nothing.
    pub fn charge_nats(&mut self, fires: &[Fires]) -> Result<&mut Self> {
        if let Some(nats) = self.nats(fires)? {
            self.claim_nats(nats, "spent");
        }
        if let Released::Bits { count, .. }
        | Released::FlippedBits { count, .. }
        | Released::DitheredScalars { count, .. } = self.released
        {
            self.nats_paper = (self.version > 2).then(|| mi::charge(self.sampling_rate, count));
        }
        if let (Released::Bits { batches, .. }, Sampler::Poisson) = (&self.released, self.sampler) {
            let delta = mi::delta_zero_realised(self.sampling_rate, *batches);
            self.claim(self.eps_delta(0.0, delta), "total variation", "spent");
        }
        Ok(self)
    }

    /// Claim so many nats, `of` what was spent or planned; where they are beyond the floats nothing is claimed, and that is said.
    pub fn claim_nats(&mut self, nats: f64, of: &str) -> &mut Self {
        if !nats.is_finite() {
            self.not_met.push(format!("{NATS}, {of}: no finite number of nats is proven, the noise is too small"));
            return self;
        }
        if of == "spent" {
            self.nats_charged = Some(nats);
        }
        self.claim(Guarantee::MutualInformation { nats }, NATS, of)
    }

    /// What the release costs in nats by the rules of the version; none where they charge nothing.
    fn nats(&self, fires: &[Fires]) -> Result<Option<f64>> {
        let s = self.sampling_rate;
        if self.version < 3 {
            return Ok(match self.released {
                // A flipped bit or a noisy sign is made from the bit alone, and so tells no more than it.
                Released::Bits { count, .. }
                | Released::FlippedBits { count, .. }
                | Released::DitheredScalars { count, .. } => Some(mi::charge(s, count)),
                _ => None,
            });
        }
        let of = |release, fires: &[Fires]| Ok(Some(mi::batch::charge_fires(release, s, self.sampler, fires)?.nats));
        let each = |count: u64, bits: u32| [Fires { steps: count, bits }];
        match self.released {
            Released::Bits { .. } => of(mi::Release::Bits { flip: 0.0, bits: 1 }, fires),
            Released::FlippedBits { flip, .. } => of(mi::Release::Bits { flip, bits: 1 }, fires),
            Released::DitheredScalars { dither, .. } => of(mi::Release::Scalars { dither, bits: 1 }, fires),
            Released::NoisedSketches { count, numbers, signs: true, levels: false, noise_multiplier, .. }
                if noise_multiplier > 0.0 =>
            {
                of(mi::Release::Signs { noise_multiplier, bits: numbers }, &each(count, numbers))
            }
            Released::NoisedSums { count, noise_multiplier, .. }
            | Released::NoisedSketches { count, noise_multiplier, .. }
                if noise_multiplier > 0.0 =>
            {
                of(mi::Release::Sum { noise_multiplier }, &each(count, 1))
            }
            Released::NoisedSums { .. } | Released::NoisedSketches { .. } | Released::Gradients { .. } => Ok(None),
        }
    }
}
