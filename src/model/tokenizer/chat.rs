//! A checkpoint's chat template: how a conversation becomes the text that the model was trained on.
//!
//! The template lies in `chat_template.jinja`, or as `chat_template` in `tokenizer_config.json`, and is rendered as transformers does:
//! blocks trimmed, `messages`, `add_generation_prompt` and the special tokens in scope, Python's methods of strings, `tojson`,
//! `raise_exception` and `strftime_now`. The latter tells a fixed day, [`TODAY`], which is the one that Llama 3's own template falls
//! back to: a record that changed overnight would change a resumed run.

use crate::error::{Error, Result};
use crate::fsio;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, ErrorKind, context};
use serde_json::ser::Formatter;
use std::io;
use std::path::Path;

/// The day of `strftime_now`: year, month, day.
const TODAY: (u32, &str, u32) = (2024, "July", 26);

/// Instructions that one rendering may take: a template is a program, and a stranger's may not run for ever.
const FUEL: u64 = 50_000_000;

const TEMPLATE: &str = "chat_template.jinja";
const SETTINGS: &str = "tokenizer_config.json";
const SPECIAL: &str = "special_tokens_map.json";

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Message {
    /// Who speaks: system, user or assistant.
    pub role: String,
    /// What is said.
    pub content: String,
}

/// A chat template that has been read. What is wrong with one is told when it is used: a model is good for other things too.
#[derive(Clone)]
pub struct ChatTemplate {
    environment: std::result::Result<Environment<'static>, String>,
    source: String,
    special: Vec<(&'static str, String)>,
}

impl ChatTemplate {
    /// The template of a tokenizer's folder; none where there is none.
    pub fn from_folder(folder: &Path) -> Result<Option<Self>> {
        let settings = json(&folder.join(SETTINGS))?;
        let [whole, special] = [TEMPLATE, SPECIAL].map(|name| folder.join(name));
        let source = if whole.is_file() {
            fsio::read_text(&whole)?
        } else {
            match named(&settings["chat_template"]) {
                Some(source) => source.to_owned(),
                None => return Ok(None),
            }
        };
        let special = json(&special)?;
        let token = |name: &'static str| {
            let text = |v: &serde_json::Value| v.as_str().or(v["content"].as_str()).map(str::to_owned);
            text(&settings[name]).or(text(&special[name])).map(|text| (name, text))
        };
        let tokens = ["bos_token", "eos_token", "unk_token", "pad_token"].into_iter().filter_map(token).collect();
        Ok(Some(Self::new(source, tokens)))
    }

    /// A template and the special tokens in its scope.
    pub fn new(source: String, special: Vec<(&'static str, String)>) -> Self {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", tojson);
        environment.add_function("strftime_now", strftime_now);
        environment.add_function(
            "raise_exception",
            |message: String| -> std::result::Result<String, minijinja::Error> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
            },
        );
        let environment = match environment.add_template_owned("chat", unmarked(&source)) {
            Ok(()) => Ok(environment),
            Err(e) => Err(format!("it cannot be read: {}, line {}", e.kind(), e.line().unwrap_or(0))),
        };
        Self { environment, source, special }
    }

    /// The text of `messages`, with the beginning of the assistant's next turn where `prompt` asks for it.
    ///
    /// The error says nothing that the messages say: they may be private.
    pub fn render(&self, messages: &[Message], prompt: bool) -> std::result::Result<String, String> {
        let told = |what: String| format!("the model's chat template does not take these messages: {what}");
        let environment = self.environment.as_ref().map_err(|e| told(e.clone()))?;
        let template = environment.get_template("chat").map_err(|e| told(e.kind().to_string()))?;
        let special: Value = self.special.iter().map(|(k, v)| (*k, Value::from(v.as_str()))).collect();
        let scope = context! { messages, add_generation_prompt => prompt, ..special };
        template.render(scope).map_err(|e| {
            let raised = e.detail().and_then(|detail| detail.strip_prefix(RAISED));
            // What a template says may quote a message, unless it stands in the template itself.
            told(match raised.filter(|said| self.source.contains(*said)) {
                Some(said) => said.to_owned(),
                None => format!("{}, line {}", e.kind(), e.line().unwrap_or(0)),
            })
        })
    }

    /// The text of a conversation, and which bytes of it are the assistant's: each turn from where its prompt ends, with what ends the
    /// turn, without the blanks after that.
    pub fn conversation(
        &self,
        messages: &[Message],
    ) -> std::result::Result<(String, Vec<std::ops::Range<usize>>), String> {
        let whole = self.render(messages, false)?;
        let mut spans = Vec::new();
        for (i, _) in messages.iter().enumerate().filter(|(_, m)| m.role == "assistant") {
            let (closed, open) = (self.render(&messages[..i], false)?, self.render(&messages[..i], true)?);
            let after = self.render(&messages[..=i], false)?;
            let (start, end) = (common(&open, &after), after.trim_end().len());
            if start < common(&closed, &open) || start > end || common(&after, &whole) < end {
                return Err(format!(
                    "the model's chat template writes turn {} anew when others follow, so the assistant's part cannot be told: let \
                     everything count in the loss",
                    i + 1
                ));
            }
            spans.push(start..end);
        }
        Ok((whole, spans))
    }
}

/// Marks what a template raised itself.
const RAISED: &str = "raised: ";

/// The `chat_template` of a `tokenizer_config.json`: a text, or the one called default of several.
fn named(value: &serde_json::Value) -> Option<&str> {
    let default = |list: &Vec<serde_json::Value>| list.iter().position(|t| t["name"] == "default");
    match value.as_array() {
        Some(list) => default(list).and_then(|i| list[i]["template"].as_str()),
        None => value.as_str(),
    }
}

/// A JSON file; null where there is none.
fn json(path: &Path) -> Result<serde_json::Value> {
    if !path.is_file() {
        return Ok(serde_json::Value::Null);
    }
    serde_json::from_str(&fsio::read_text(path)?).map_err(|e| Error::file(path, format!("is not valid JSON ({e})")))
}

/// Length of the longest beginning that two texts share.
fn common(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}

/// `source` with the marks of the assistant's turns, which change no text, as a block that is always taken.
fn unmarked(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let end = rest[start..].find("%}").map_or(rest.len(), |n| start + n + 2);
        let (before, tag) = (&rest[..start], &rest[start..end]);
        out.push_str(before);
        match tag.trim_matches(['{', '%', '}', '-', '+']).trim() {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = &rest[end..];
    }
    out + rest
}

/// `json.dumps` of Python, which transformers' filter is: characters as they are, a blank after commas and colons.
fn tojson(value: &Value, args: Kwargs) -> std::result::Result<Value, minijinja::Error> {
    let wrong = |_| minijinja::Error::new(ErrorKind::InvalidOperation, "this cannot be written as JSON");
    let indent: Option<usize> = args.get("indent")?;
    let mut out = Vec::new();
    match indent {
        Some(n) => {
            let blanks = " ".repeat(n.min(16));
            let pretty = serde_json::ser::PrettyFormatter::with_indent(blanks.as_bytes());
            serde::Serialize::serialize(value, &mut serde_json::Serializer::with_formatter(&mut out, pretty))
        }
        None => {
            serde::Serialize::serialize(value, &mut serde_json::Serializer::with_formatter(&mut out, PythonSpacing))
        }
    }
    .map_err(wrong)?;
    Ok(Value::from(String::from_utf8_lossy(&out).into_owned()))
}

/// Python's separators.
struct PythonSpacing;

impl Formatter for PythonSpacing {
    fn begin_array_value<W: io::Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: io::Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

/// The parts of a date that templates ask for, on [`TODAY`]; others stay as they are.
fn strftime_now(format: String) -> String {
    let (year, month, day) = TODAY;
    [
        ("%d", format!("{day:02}")),
        ("%Y", year.to_string()),
        ("%B", month.into()),
        ("%b", month[..3].into()),
        ("%m", "07".into()),
    ]
    .iter()
    .fold(format, |text, (part, value)| text.replace(part, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(turns: &[(&str, &str)]) -> Vec<Message> {
        turns.iter().map(|(role, content)| Message { role: (*role).into(), content: (*content).into() }).collect()
    }

    const IM: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}\
                      {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

    #[test]
    fn the_assistants_turns_are_found() {
        let template = ChatTemplate::new(IM.into(), vec![]);
        let chat = said(&[("user", "hi"), ("assistant", "ho\u{e9}"), ("user", "bye"), ("assistant", "so long")]);
        let (text, spans) = template.conversation(&chat).unwrap();
        assert!(text.starts_with("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nho"), "{text}");
        let parts: Vec<&str> = spans.into_iter().map(|span| &text[span]).collect();
        assert_eq!(parts, ["ho\u{e9}<|im_end|>", "so long<|im_end|>"]);
        assert!(template.render(&chat[..1], true).unwrap().ends_with("<|im_end|>\n<|im_start|>assistant\n"));
    }

    #[test]
    fn prompts_that_think_and_templates_without_a_prompt() {
        // The prompt goes on where a finished turn does not: what both have is the prompt.
        let think = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<assistant><think>{% endif %}";
        let template = ChatTemplate::new(think.into(), vec![]);
        let (text, spans) = template.conversation(&said(&[("user", "a"), ("assistant", "b")])).unwrap();
        assert_eq!(&text[spans[0].clone()], "b</s>");
        let inst = "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'].strip() }} [/INST]{% else %}\
                    {{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}";
        let tokens = vec![("bos_token", "<s>".to_owned()), ("eos_token", "</s>".to_owned())];
        let template = ChatTemplate::new(inst.into(), tokens);
        let (text, spans) = template.conversation(&said(&[("user", " a "), ("assistant", "b")])).unwrap();
        assert_eq!((text.as_str(), &text[spans[0].clone()]), ("<s>[INST] a [/INST] b</s>", " b</s>"));
    }

    #[test]
    fn a_template_that_looks_ahead_is_refused() {
        let last = "{% for m in messages %}{% if loop.last %}{{ m.content }}{% else %}-{% endif %}{% endfor %}";
        let template = ChatTemplate::new(last.into(), vec![]);
        let error = template.conversation(&said(&[("user", "a"), ("assistant", "b"), ("user", "c")])).unwrap_err();
        assert!(error.contains("turn 2 anew"), "{error}");
    }

    #[test]
    fn functions_are_transformers() {
        let chat = said(&[("user", "<a> 'b'")]);
        let render = |source: &str| ChatTemplate::new(source.into(), vec![]).render(&chat, true);
        assert_eq!(render("{{ messages | tojson }}").unwrap(), r#"[{"role": "user", "content": "<a> 'b'"}]"#);
        assert_eq!(render("{{ [1, 'x'] | tojson(indent=2) }}").unwrap(), "[\n  1,\n  \"x\"\n]");
        assert_eq!(render("{{ strftime_now('%d %b %Y') }}").unwrap(), "26 Jul 2024");
        assert_eq!(render("{%- generation -%} x {%- endgeneration %}").unwrap(), "x");
        assert_eq!(
            render("{% for m in messages %}\n    {% if true %}\n{{ m.role.upper() }}\n    {% endif %}\n{% endfor %}")
                .unwrap(),
            "USER\n"
        );
        assert_eq!(
            render("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}").unwrap(),
            "1"
        );
    }

    #[test]
    fn errors_quote_the_template_and_never_a_message() {
        let chat = said(&[("user", "SECRET")]);
        let error = |source: &str| ChatTemplate::new(source.into(), vec![]).render(&chat, true).unwrap_err();
        assert!(error("{{ raise_exception('No system, please') }}").ends_with("No system, please"));
        for source in [
            "{{ raise_exception('no ' + messages[0].content) }}",
            "{{ messages[0].content + 1 }}",
            "{{ messages[0].content.nothing() }}",
            "{% for i in range(100000) %}{% for j in range(100000) %}{{ i }}{% endfor %}{% endfor %}",
            "{% if %}",
        ] {
            let error = error(source);
            assert!(!error.contains("SECRET"), "{source}: {error}");
        }
    }
}
