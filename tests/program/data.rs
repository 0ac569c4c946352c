//! Tokenizers and data.

use crate::io_support::*;
use ferret::data::{Dataset, LoadOptions, Loss, Unit, load_examples};
use ferret::model::checkpoint;
use ferret::model::tokenizer::Tokenizer;
use std::path::Path;

fn options() -> LoadOptions {
    LoadOptions { context: 16, vocab: 259, eos: Some(258), loss: Loss::Response, stride: None, unit: Unit::Record }
}

fn bytes() -> (tempfile::TempDir, Tokenizer) {
    let folder = tempfile::tempdir().unwrap();
    byte_tokenizer(folder.path());
    let tokenizer = Tokenizer::from_folder(folder.path()).unwrap().unwrap();
    (folder, tokenizer)
}

fn load(name: &str, content: &str, options: &LoadOptions) -> Dataset {
    let (folder, tokenizer) = bytes();
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    load_examples(&path, Some(&tokenizer), options).unwrap()
}

/// Ids and the indices that count.
fn shape(dataset: &Dataset) -> Vec<(Vec<u32>, Vec<usize>)> {
    let counting = |l: &[bool]| l.iter().enumerate().filter(|(_, l)| **l).map(|(i, _)| i).collect();
    dataset.examples.iter().map(|e| (e.ids.clone(), counting(&e.learn))).collect()
}

#[test]
fn byte_level_bpe() {
    let (_folder, tokenizer) = bytes();
    assert_eq!((tokenizer.len(), tokenizer.max_id()), (259, 258));
    assert_eq!(tokenizer.encode("hello he").unwrap(), [257, 108, 111, 32, 256]);
    assert_eq!(tokenizer.encode("he<|endoftext|>\n").unwrap(), [256, 258, 10]);
    assert_eq!(tokenizer.encode("").unwrap(), [0u32; 0]);
    assert_eq!(tokenizer.decode(&[257, 108, 111, 258]).unwrap(), "hello<|endoftext|>");
}

#[test]
fn a_corpus_in_parts_gives_the_same_tokens() {
    let (_folder, tokenizer) = bytes();
    // Every run of blanks between every kind of neighbours.
    let unit = "he 's  hel\n\n he\t 12 \u{a0} é\u{3000}- <|endoftext|> !\r\n he, \n x   ";
    let text = unit.repeat(4000);
    assert!(text.len() > 3 << 16);
    for from in [0, 1, 3] {
        assert!(tokenizer.encode_long(&text[from..]).unwrap() == tokenizer.encode(&text[from..]).unwrap(), "{from}");
    }
}

#[test]
fn streaming_gives_the_whole_text_and_no_broken_character() {
    let (_folder, tokenizer) = bytes();
    let text = "hello, 世界 😀 é<|endoftext|>!";
    let ids = tokenizer.encode(text).unwrap();
    let mut stream = tokenizer.stream();
    let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    assert!(pieces.iter().any(String::is_empty) && !pieces.concat().contains('\u{FFFD}'));
    pieces.push(stream.finish().unwrap());
    assert_eq!(pieces.concat(), text);
    // Cut inside a character, and a byte that can start none.
    let broken = [0xE4, 0xB8, 65, 0xFF, 66, 0xF0, 0x9F];
    let mut stream = tokenizer.stream();
    let mut out: String = broken.iter().map(|&id| stream.push(id).unwrap()).collect();
    assert_eq!(out, "\u{FFFD}A\u{FFFD}B");
    out += &stream.finish().unwrap();
    assert_eq!(out, tokenizer.decode(&broken).unwrap());
}

#[test]
fn a_tokenizer_file_that_cuts_or_pads_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let json = r#"{"version":"1.0","truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0},
        "padding":{"strategy":{"Fixed":8},"direction":"Right","pad_to_multiple_of":null,"pad_id":0,"pad_type_id":0,"pad_token":"a"},
        "added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
        "post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
        "model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"vocab":{"a":0,"b":1},"merges":[]}}"#;
    std::fs::write(folder.path().join("tokenizer.json"), json).unwrap();
    let tokenizer = Tokenizer::from_folder(folder.path()).unwrap().unwrap();
    assert_eq!(tokenizer.encode("abab").unwrap(), [0, 1, 0, 1]);
    assert!(Tokenizer::from_folder(&tiny()).unwrap().is_none());
}

#[test]
fn records_of_every_kind() {
    let lines = [
        r#"{"text":"abc"}"#,
        r#"{"prompt":"ab","response":"cd"}"#,
        r#"{"prompt":"ab","response":"c<|endoftext|>"}"#,
        r#"{"prompt":"","response":"c"}"#,
        r#"{"tokens":[5,6,7]}"#,
        r#"{"tokens":[5,6,7],"learn":[true,false,true]}"#,
    ];
    let found = load("a.jsonl", &lines.join("\n"), &options());
    assert_eq!(
        shape(&found),
        [
            (vec![97, 98, 99], vec![1, 2]),
            (vec![97, 98, 99, 100, 258], vec![2, 3, 4]),
            (vec![97, 98, 99, 258], vec![2, 3]),
            (vec![99, 258], vec![1]),
            (vec![5, 6, 7], vec![1, 2]),
            (vec![5, 6, 7], vec![2]),
        ]
    );
    assert_eq!((found.truncated, found.tokens_cut, found.without_target), (0, 0, 0));
    let all = load("a.jsonl", lines[1], &LoadOptions { loss: Loss::Everything, ..options() });
    assert_eq!(shape(&all), [(vec![97, 98, 99, 100, 258], vec![1, 2, 3, 4])]);
    let plain = load("a.jsonl", lines[1], &LoadOptions { eos: None, ..options() });
    assert_eq!(shape(&plain), [(vec![97, 98, 99, 100], vec![2, 3])]);
    let chat = r#"{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y"}]}"#;
    let chat = load("a.jsonl", chat, &LoadOptions { context: 64, ..options() });
    let text: Vec<u32> = b"user: x\nassistant: y".iter().map(|&b| b.into()).chain([258]).collect();
    assert_eq!(shape(&chat), [(text, vec![18, 19, 20])]);
}

#[test]
fn a_response_made_for_another_model_is_noticed() {
    let line = r#"{"prompt":"ab","response":"c<|endoftext|>"}"#;
    let own = load("a.jsonl", line, &options());
    assert!(own.other_ends == 0 && own.notes().is_empty());
    // The same file for a model that ends its replies by another token.
    let other = load("a.jsonl", line, &LoadOptions { eos: Some(10), ..options() });
    assert_eq!(shape(&other), [(vec![97, 98, 99, 258, 10], vec![2, 3, 4])]);
    assert!(
        other.notes()[0].starts_with("1 records have a response that ends with a special token"),
        "{:?}",
        other.notes()
    );
}

#[test]
fn what_is_cut_is_counted() {
    let lines = [
        r#"{"tokens":[1,2,3,4]}"#,
        r#"{"tokens":[1,2,3,4,5,6,7]}"#,
        r#"{"prompt":"abcdef","response":"g"}"#,
        r#"{"text":""}"#,
    ];
    let found = load("a.jsonl", &(lines.join("\r\n") + "\n\n"), &LoadOptions { context: 4, ..options() });
    assert_eq!((found.examples.len(), found.truncated, found.tokens_cut, found.without_target), (4, 2, 7, 2));
    assert!(found.examples.iter().all(|e| e.ids.len() <= 4 && e.ids.len() == e.learn.len()));
    let notes = found.notes();
    assert!(notes[0].contains("2 of 4 records") && notes[0].contains("7 tokens"), "{notes:?}");
    assert!(notes[1].contains("2 of 4 records"), "{notes:?}");
}

#[test]
fn plain_text_is_windows() {
    let found = load("a.txt", "abcdefghij", &LoadOptions { context: 4, stride: Some(2), ..options() });
    assert!(found.windows && found.notes().is_empty());
    assert_eq!((found.examples.len(), found.targets()), (4, 9));
    assert_eq!(shape(&found)[1], (vec![99, 100, 101, 102], vec![2, 3]));
    assert_eq!(load("a.txt", "\u{FEFF}ab", &options()).examples[0].ids, [97, 98]);
}

#[test]
fn bad_data_is_refused_in_a_sentence() {
    let config = checkpoint::read_config(tiny().to_str().unwrap()).unwrap();
    for case in bad_data::CASES {
        let folder = tempfile::tempdir().unwrap();
        let path = case.write(folder.path());
        let error = load_examples(&path, None, &LoadOptions::new(&config)).err();
        let error = error.unwrap_or_else(|| panic!("{} was read", case.what)).to_string();
        for says in case.says {
            assert!(error.contains(says), "{}: {says:?} is not in: {error}", case.what);
        }
    }
    let (folder, tokenizer) = bytes();
    let path = folder.path().join("a.txt");
    std::fs::write(&path, "abc").unwrap();
    let small = LoadOptions { vocab: 98, ..options() };
    let error = load_examples(&path, Some(&tokenizer), &small).unwrap_err().to_string();
    assert!(error.contains("token at index 1 lies outside the model's vocabulary of 98"), "{error}");
    let stride = LoadOptions { stride: Some(17), ..options() };
    assert!(load_examples(&path, Some(&tokenizer), &stride).unwrap_err().to_string().contains("stride of 17"));
}

#[test]
fn order_does_not_depend_on_threads() {
    let lines: Vec<String> = (0..500).map(|i| format!("{{\"text\":\"record {i} {}\"}}", "x".repeat(i % 7))).collect();
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| load("a.jsonl", &lines.join("\n"), &options()))
    };
    assert!(run(1) == run(4));
    let mut broken = lines.clone();
    broken[77] = "{".into();
    broken[400] = "{".into();
    let (folder, tokenizer) = bytes();
    let path = folder.path().join("a.jsonl");
    std::fs::write(&path, broken.join("\n")).unwrap();
    let error = load_examples(&path, Some(&tokenizer), &options()).unwrap_err().to_string();
    assert!(error.contains("line 78"), "the first is named: {error}");
}

/// GPT-2's tokenizer as tokenizer.json, and as vocab.json and merges.txt alone.
fn gpt2(shared: &Path) -> [Tokenizer; 2] {
    let whole = shared.join("models/gpt2-tokenizer");
    let pair = tempfile::tempdir().unwrap();
    for name in ["vocab.json", "merges.txt"] {
        std::fs::copy(whole.join(name), pair.path().join(name)).unwrap();
    }
    [whole.as_path(), pair.path()].map(|p| Tokenizer::from_folder(p).unwrap().unwrap())
}

#[test]
fn gpt2s_tokens() {
    let Some(shared) = shared() else { return };
    let [whole, pair] = gpt2(&shared);
    let text = std::fs::read_to_string(shared.join("data/wikitext-2/wiki.valid.raw")).unwrap();
    let text: String = text.chars().take(300_000).collect();
    for tokenizer in [&whole, &pair] {
        assert_eq!(tokenizer.encode("Hello world").unwrap(), [15496, 995]);
        assert_eq!((tokenizer.len(), tokenizer.max_id()), (50257, 50256));
        assert_eq!(tokenizer.encode("a<|endoftext|>").unwrap(), [64, 50256]);
        assert_eq!(tokenizer.decode(&tokenizer.encode(&text).unwrap()).unwrap(), text);
    }
    let ids = whole.encode(&text).unwrap();
    assert!(ids == pair.encode(&text).unwrap() && ids == whole.encode_long(&text).unwrap());
}

#[test]
fn real_data_loads() {
    let Some(shared) = shared() else { return };
    let [tokenizer, _] = gpt2(&shared);
    let unit = Unit::Record;
    let gpt2 = LoadOptions { context: 1024, vocab: 50257, eos: Some(50256), loss: Loss::Response, stride: None, unit };
    let wiki = load_examples(&shared.join("data/wikitext-2/wiki.test.hfjoin.txt"), Some(&tokenizer), &gpt2).unwrap();
    assert_eq!((wiki.tokens(), wiki.examples.len()), (287_644, 281));
    assert_eq!(wiki.targets(), 287_644 - 281);
    let t0 = load_examples(&shared.join("data/t0-20k.jsonl"), Some(&tokenizer), &gpt2).unwrap();
    assert_eq!((t0.examples.len(), t0.truncated, t0.without_target), (20_000, 0, 0));
    // Every response there ends with <|endoftext|> already: it is not doubled.
    assert!(
        t0.examples.iter().all(|e| e.ids.iter().filter(|&&id| id == 50256).count() == 1 && e.ids.ends_with(&[50256]))
    );
}

#[test]
fn records_of_a_user_are_one_example() {
    let lines = [
        r#"{"text":"ab","user":"ann"}"#,
        r#"{"prompt":"x","response":"y","user":7}"#,
        r#"{"text":"cd","user":"ann"}"#,
        r#"{"text":"zz","user":"7"}"#,
    ]
    .join("\n");
    let by_user = LoadOptions { unit: Unit::User { most: None }, ..options() };
    let found = load("a.jsonl", &lines, &by_user);
    // The end-of-text that a response ends with is not doubled, and nothing is predicted across records.
    assert_eq!(
        shape(&found),
        [(vec![97, 98, 258, 99, 100], vec![1, 4]), (vec![120, 121, 258, 122, 122], vec![1, 2, 4])]
    );
    assert!(found.users && found.notes().iter().any(|n| n.contains("2 users")));
    let capped = load("a.jsonl", &lines, &LoadOptions { unit: Unit::User { most: Some(1) }, ..options() });
    assert_eq!((capped.examples.len(), capped.left_out), (2, 2));
    assert_eq!((capped.records().len(), &capped.records()[2].ids[..]), (4, &[99, 100][..]));
    assert!(capped.notes().iter().any(|n| n.contains("2 records are not used")));
    let each = load("a.jsonl", &lines, &options());
    assert_eq!(each.examples.len(), 4);
    assert!(each.notes().iter().any(|n| n.contains("`unit` user")), "{:?}", each.notes());
    for (content, says) in [
        ("{\"text\":\"ab\",\"user\":\"a\"}\n{\"text\":\"cd\"}\n", "line 2: has no \"user\""),
        ("{\"text\":\"ab\",\"user\":[1]}\n", "line 1: \"user\" is a list"),
        ("{\"text\":\"ab\",\"user\":\"\"}\n", "line 1: \"user\" is empty"),
    ] {
        let (folder, tokenizer) = bytes();
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, content).unwrap();
        let error = load_examples(&path, Some(&tokenizer), &by_user).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        // Who does not ask for users may have anything under that key.
        assert!(load_examples(&path, Some(&tokenizer), &options()).is_ok());
    }
}

#[test]
fn copies_are_counted_and_not_quoted() {
    let lines =
        ["{\"text\":\"secret\"}"; 5].join("\n") + "\n{\"text\":\"other\"}\n{\"text\":\"other\"}\n{\"text\":\"x\"}";
    let found = load("a.jsonl", &lines, &options());
    assert_eq!(found.copies(), (5, 5));
    let notes = found.notes();
    let note = notes.iter().find(|n| n.contains("copies")).unwrap();
    assert!(note.contains("5 of 8 records") && note.contains("there 5 times") && !note.contains("secret"), "{note}");
    assert!(load("a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"cd\"}", &options()).notes().is_empty());
}

/// The program, from the records to the statement: what is promised is about a user, and N counts users.
#[test]
fn a_run_by_user_promises_about_users() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    copy_tiny(&dir.join("model"));
    let lines: Vec<String> =
        (0..12).map(|i| format!("{{\"tokens\":[1,{},{i}],\"user\":\"u{}\"}}", i + 3, i % 5)).collect();
    std::fs::write(dir.join("a.jsonl"), lines.join("\n")).unwrap();
    let train = |out: &str, more: &[&str]| {
        let ask = [
            "train",
            "-e1",
            "--method",
            "dpsgd",
            "--noise-multiplier",
            "1",
            "--batch",
            "2",
            "--model",
            "model",
            "--data",
            "a.jsonl",
        ];
        ferret(dir).args(ask).args(["--out", out, "--json"]).args(more).output().unwrap()
    };
    let statement = |out: &str| -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(dir.join(out).join("privacy.json")).unwrap()).unwrap()
    };
    let output = train("by-user", &["--unit", "user", "--records-per-user", "2"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("5 users") && stderr(&output).contains("2 records are not used"),
        "{}",
        stderr(&output)
    );
    let said = statement("by-user");
    assert_eq!((&said["records"], &said["users"], &said["sampling_rate"]), (&5.into(), &true.into(), &0.4.into()));
    let page = std::fs::read_to_string(dir.join("by-user/PRIVACY.md")).unwrap();
    assert!(page.contains("A record is a user") && !page.contains("A record is one line"), "{page}");
    let output = train("by-record", &[]);
    assert!(stderr(&output).contains("--unit user makes a promise about a person"), "{}", stderr(&output));
    let said = statement("by-record");
    assert_eq!((&said["records"], said.get("users")), (&12.into(), None));
    assert_refused("a cap without users", &train("none", &["--records-per-user", "2"]), &["--unit user"]);
    std::fs::write(dir.join("a.jsonl"), "{\"tokens\":[1,2]}\n".repeat(4)).unwrap();
    assert_refused("no users", &train("none", &["--unit", "user"]), &["line 1", "has no \"user\""]);
}
