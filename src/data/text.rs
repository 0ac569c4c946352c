//! Plain text as windows of the context.
//!
//! The text is tokenised whole. Window k starts at token k S and is `context` long; the stride S is the context unless
//! one is given. Of a later window only the tokens that no earlier one covered count in the loss (with overlapping
//! windows the last S, each predicted with at least `context` - S tokens before it), and never a window's first
//! token. This is how the perplexity of GPT-2 is usually measured.

use super::records::check_ids;
use super::{Dataset, Example, LoadOptions, no_tokenizer};
use crate::error::{Error, Result};
use crate::model::tokenizer::Tokenizer;
use std::path::Path;

pub(super) fn load(
    path: &Path,
    content: &str,
    tokenizer: Option<&Tokenizer>,
    options: &LoadOptions,
) -> Result<Dataset> {
    let tokenizer = tokenizer.ok_or_else(|| Error::file(path, no_tokenizer()))?;
    let mut ids = tokenizer.beginning().to_vec();
    ids.extend(tokenizer.encode_long(content)?);
    check_ids(&ids, options.vocab).map_err(|what| Error::file(path, what))?;
    let examples = windows(&ids, options.context, options.stride.unwrap_or(options.context))?;
    Ok(Dataset { examples, windows: true, ..Dataset::default() })
}

/// Cut `ids` into windows; windows in which nothing counts are left out.
pub fn windows(ids: &[u32], context: usize, stride: usize) -> Result<Vec<Example>> {
    if stride == 0 || stride > context {
        let what =
            format!("a stride of {stride} must lie between 1 and the context of {context}, or tokens are left out");
        return Err(Error::usage(what));
    }
    let mut examples = Vec::new();
    let (mut start, mut covered) = (0, 0);
    while covered < ids.len() {
        let end = ids.len().min(start + context);
        let learn: Vec<bool> = (start..end).map(|i| i >= covered && i > start).collect();
        if learn.contains(&true) {
            examples.push(Example { ids: ids[start..end].to_vec(), learn });
        }
        covered = end;
        start += stride;
    }
    Ok(examples)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(n: u32, context: usize, stride: usize) -> Vec<(u32, usize, usize)> {
        let ids: Vec<u32> = (0..n).collect();
        windows(&ids, context, stride).unwrap().iter().map(|e| (e.ids[0], e.ids.len(), e.targets())).collect()
    }

    #[test]
    fn side_by_side() {
        assert_eq!(spans(10, 4, 4), [(0, 4, 3), (4, 4, 3), (8, 2, 1)]);
        assert_eq!(spans(9, 4, 4), [(0, 4, 3), (4, 4, 3)]);
        assert_eq!(spans(3, 4, 4), [(0, 3, 2)]);
    }

    #[test]
    fn overlapping_windows_count_each_token_once() {
        assert_eq!(spans(10, 4, 2), [(0, 4, 3), (2, 4, 2), (4, 4, 2), (6, 4, 2)]);
        assert_eq!(spans(9, 4, 2), [(0, 4, 3), (2, 4, 2), (4, 4, 2), (6, 3, 1)]);
        for (n, context, stride) in [(1000, 64, 1), (1000, 64, 7), (1001, 64, 63), (65, 64, 32), (64, 64, 32)] {
            let ids: Vec<u32> = (0..n).collect();
            let mut seen: Vec<u32> = Vec::new();
            for e in windows(&ids, context, stride).unwrap() {
                seen.extend(e.ids.iter().zip(&e.learn).filter(|(_, l)| **l).map(|(id, _)| id));
            }
            assert_eq!(seen, (1..n).collect::<Vec<_>>(), "{n} {context} {stride}");
        }
        assert!(windows(&[1, 2], 4, 5).is_err() && windows(&[1, 2], 4, 0).is_err());
    }
}
