//! Groups of parameter tensors: what fires, and is updated, together.
//!
//! Groups are runs of tensors in checkpoint order. A tied tensor has one id and so counts once.

use crate::error::{Error, Result};
use crate::model::{Layout, ParamId};

/// How to cut the parameters into groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// So many consecutive tensors a group; the last may be smaller.
    Bucket(usize),
    /// So many groups, as equal in number of tensors as can be: the first ones are larger by one.
    Count(usize),
}

impl Grouping {
    /// The grouping of a FERRET variant: `ferret-max` one tensor a group, `ferret-half`, `ferret-quarter` and `ferret-eighth`
    /// buckets of 2, 4 and 8 (so a half, a quarter, an eighth of MAX's groups), `ferret-2` two groups.
    ///
    /// The two groups of `ferret-2` are equal in tensors, not scalars, as the paper partitions tensors; the bits a
    /// group costs do not depend on its size.
    pub fn of_method(method: &str) -> Option<Self> {
        Some(match method {
            "ferret-max" => Self::Bucket(1),
            "ferret-half" => Self::Bucket(2),
            "ferret-quarter" => Self::Bucket(4),
            "ferret-eighth" => Self::Bucket(8),
            "ferret-2" => Self::Count(2),
            _ => return None,
        })
    }
}

/// The groups of one decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    /// The tensors of each group, in checkpoint order.
    pub members: Vec<Vec<ParamId>>,
}

impl Groups {
    /// Cut all of `layout`'s parameters by `grouping`.
    pub fn new(layout: &Layout, grouping: Grouping) -> Result<Self> {
        Self::tuned(&layout.ids().collect::<Vec<_>>(), grouping)
    }

    /// Cut the parameters `ids`, which are those tuned, by `grouping`. No other one is in a group.
    pub fn tuned(ids: &[ParamId], grouping: Grouping) -> Result<Self> {
        let tensors = ids.len();
        let members = match grouping {
            Grouping::Bucket(0) | Grouping::Count(0) => {
                return Err(Error::usage("groups and buckets must hold at least one tensor, found 0"));
            }
            Grouping::Bucket(size) => ids.chunks(size).map(<[_]>::to_vec).collect(),
            Grouping::Count(count) if count > tensors => {
                return Err(Error::Usage(format!(
                    "{count} groups asked for, {tensors} tensors are tuned: ask for at most {tensors}"
                )));
            }
            Grouping::Count(count) => {
                (0..count).map(|g| ids[split(g, count, tensors)..split(g + 1, count, tensors)].to_vec()).collect()
            }
        };
        Ok(Self { members })
    }

    /// Number of groups G.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is no group at all.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Number of scalars d in `group`.
    pub fn scalars(&self, layout: &Layout, group: usize) -> usize {
        layout.scalars_of(&self.members[group])
    }
}

/// Where group `g` of `count` starts among `n` tensors, when the first n mod count groups have one more.
fn split(g: usize, count: usize, n: usize) -> usize {
    g * (n / count) + g.min(n % count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Config;
    use crate::model::init::Preset;

    fn layout(layers: usize, tied: bool) -> Layout {
        Layout::new(&Config {
            vocab: 50,
            positions: 16,
            width: 8,
            layers,
            heads: 2,
            kv_heads: 2,
            head_width: 4,
            inner: 32,
            tied,
            ..Preset::Tiny.config()
        })
    }

    #[test]
    fn every_tensor_is_in_exactly_one_group_in_order() {
        let layout = layout(3, true);
        for grouping in
            [Grouping::Bucket(1), Grouping::Bucket(8), Grouping::Count(2), Grouping::Count(7), Grouping::Bucket(1000)]
        {
            let groups = Groups::new(&layout, grouping).unwrap();
            let flat: Vec<_> = groups.members.iter().flatten().copied().collect();
            assert_eq!(flat, layout.ids().collect::<Vec<_>>(), "{grouping:?}");
            let total: usize = (0..groups.len()).map(|g| groups.scalars(&layout, g)).sum();
            assert_eq!(total, layout.scalars());
            assert!(groups.members.iter().all(|m| !m.is_empty()));
        }
    }

    #[test]
    fn gpt2_has_148_tensors_and_the_variants_follow() {
        let layout = layout(12, true);
        let count = |m: &str| Groups::new(&layout, Grouping::of_method(m).unwrap()).unwrap().len();
        assert_eq!(
            [
                count("ferret-max"),
                count("ferret-half"),
                count("ferret-quarter"),
                count("ferret-eighth"),
                count("ferret-2")
            ],
            [148, 74, 37, 19, 2]
        );
        assert_eq!(Grouping::of_method("dpsgd"), None);
    }

    #[test]
    fn a_frozen_tensor_is_in_no_group() {
        let layout = layout(3, true);
        let ids: Vec<_> = layout.ids().filter(|p| p.0 % 3 == 1).collect();
        for grouping in [Grouping::Bucket(1), Grouping::Bucket(4), Grouping::Count(2)] {
            let groups = Groups::tuned(&ids, grouping).unwrap();
            assert_eq!(groups.members.concat(), ids, "{grouping:?}");
        }
        assert!(Groups::tuned(&ids, Grouping::Count(ids.len() + 1)).is_err());
    }

    #[test]
    fn sizes_differ_by_at_most_one_and_bad_counts_are_refused() {
        let layout = layout(1, false);
        let sizes: Vec<_> = Groups::new(&layout, Grouping::Count(4)).unwrap().members.iter().map(Vec::len).collect();
        assert_eq!(sizes, [5, 4, 4, 4]);
        for bad in [Grouping::Bucket(0), Grouping::Count(0), Grouping::Count(18)] {
            assert!(Groups::new(&layout, bad).is_err());
        }
    }
}
