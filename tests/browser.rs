//! The report in a real browser: headless Chromium opens a page of a small real run with a script appended that clicks
//! and measures (`browser/check.js`), and hands the document back.
//!
//! Chromium is `FERRET_CHROMIUM`, or the first of its usual names on the PATH. Without one the tests say so and pass,
//! unless FERRET_REQUIRE_BROWSER=1. `FERRET_BROWSER_KEEP=FOLDER` keeps the page and screenshots there, to be looked at.
#![cfg(feature = "embedded")]

use ferret::study::html::{Cell, Page, Part, Section, Table, render};
use ferret::study::plot::{Axis, Chart, Series};
use ferret::study::{comparison, first};
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The browser, or none where the tests may be left out.
fn chromium() -> Option<PathBuf> {
    let named = std::env::var_os("FERRET_CHROMIUM").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = || {
        let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
        std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name))).find(|file| file.is_file())
    };
    let found = named.or_else(on_path);
    if found.is_none() {
        assert!(
            std::env::var("FERRET_REQUIRE_BROWSER").as_deref() != Ok("1"),
            "FERRET_REQUIRE_BROWSER=1 is set, and there is no Chromium on the PATH or in FERRET_CHROMIUM"
        );
        eprintln!("skipped: no Chromium on the PATH or in FERRET_CHROMIUM");
    }
    found
}

/// How a page is looked at.
#[derive(Clone, Copy)]
struct Look {
    width: u32,
    dark: bool,
}

/// Run the browser on `file` with one more `option`; its standard output and error.
fn browse(browser: &Path, file: &Path, look: Look, height: u32, option: &str) -> (String, String) {
    let dir = tempfile::tempdir().unwrap();
    let (out, err) = (dir.path().join("out"), dir.path().join("err"));
    let mut child = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"])
        .args(["--disable-dev-shm-usage", "--enable-logging=stderr", "--virtual-time-budget=5000"])
        .arg(format!("--user-data-dir={}", dir.path().join("profile").display()))
        .arg(format!("--window-size={},{height}", look.width))
        .arg(format!("--blink-settings=preferredColorScheme={}", if look.dark { 0 } else { 1 }))
        .arg(option)
        .arg(format!("file://{}", file.display()))
        .stdin(Stdio::null())
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(&err).unwrap())
        .spawn()
        .unwrap_or_else(|e| panic!("{}: {e}", browser.display()));
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if begun.elapsed() > Duration::from_secs(180) => {
                let _ = child.kill();
                panic!("the browser did not end: {}", fs::read_to_string(&err).unwrap_or_default());
            }
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let read = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
    let (out, err) = (read(&out), read(&err));
    assert!(status.success(), "the browser failed: {status}: {err}");
    (out, err)
}

/// What the script found on the page.
fn findings(browser: &Path, html: &str, look: Look) -> Value {
    let early = "<script>window.__errors = []; addEventListener('error', e => __errors.push(String(e.message)));\n\
                 console.error = (...words) => __errors.push(words.join(' '));</script>";
    let late = format!("<script>{}</script></body>", include_str!("browser/check.js"));
    let copy = html.replacen("<head>", &format!("<head>{early}"), 1).replacen("</body>", &late, 1);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("page.html"), copy).unwrap();
    // A window is at least 500 pixels wide; a frame in it may be narrower. The frame takes its scheme from what is around.
    let around = format!(
        "<!doctype html><meta charset=\"utf-8\"><style>:root {{ color-scheme: light dark; }}</style>\n\
         <script>addEventListener('message', e => {{ const pre = document.createElement('pre'); pre.id = 'findings';\n\
         pre.textContent = e.data; document.body.append(pre); }});</script>\n\
         <iframe src=\"page.html\" style=\"border: 0; width: {}px; height: 900px\"></iframe>",
        look.width
    );
    let file = dir.path().join("around.html");
    fs::write(&file, around).unwrap();
    let (dom, log) = browse(browser, &file, Look { width: 1500, ..look }, 1000, "--dump-dom");
    let text = dom.split("<pre id=\"findings\">").nth(1).unwrap_or_else(|| panic!("no findings: {log}"));
    let text = text.split("</pre>").next().unwrap();
    let json = text.replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", "\u{a0}").replace("&amp;", "&");
    let mut found: Value = serde_json::from_str(&json).unwrap_or_else(|e| panic!("{e}: {json}"));
    // Whatever reaches the console counts, be it from the page or about it.
    for line in log.lines().filter(|line| line.contains("CONSOLE")) {
        found["errors"].as_array_mut().unwrap().push(line.into());
    }
    found
}

/// A page of a real run, small: 240 candidates, one pass, two seeds so that figures have their spread.
fn page() -> &'static str {
    static PAGE: OnceLock<String> = OnceLock::new();
    PAGE.get_or_init(|| {
        let options = first::Options {
            candidates: 240,
            audited: 60,
            epochs: 1,
            seeds: 2,
            insecure_seed: Some(1),
            ..first::Options::default()
        };
        let worlds = first::worlds(&options).unwrap();
        let rows = first::run(&worlds, &options, &|_| Ok(()), &|_, _| ()).unwrap();
        let about = comparison::About::of(&worlds, &options).unwrap();
        let mut page = comparison::page(&rows, &about, "ferret");
        let verdict = |outcome: &str| Part::Verdict {
            name: format!("H: an example that {outcome}"),
            outcome: outcome.into(),
            test: "a stated test over 5 seeds, p = 0.03".into(),
        };
        let section = |title: &str, parts| Section { id: title.into(), title: title.into(), parts };
        let long = Part::Code(format!("cargo run --release -- {}", "--a-long-option 12 ".repeat(12)));
        page.sections.push(section("Verdicts", ["holds", "fails", "undecided"].map(verdict).into()));
        page.sections.push(section("Kinds", vec![long, Part::Table(kinds_of_cells()), Part::Table(as_of_a_study())]));
        render(&page)
    })
}

/// As wide as a study's tables are: nine columns, three of them numbers with their spread and range.
fn as_of_a_study() -> Table {
    let titles =
        ["method", "numbers a step", "released", "noise [C]", "rate", "test ppl", "AUC", "time [s]", "eps spent"];
    let row = |method: &str| {
        let spread = ["115.44 ± 11.35 [102.62, 124.19]", "0.503 ± 0.003 [0.500, 0.507]", "84.6 ± 116.4 [12.3, 218.8]"];
        let first = [method, "642,544", "393.2 KB", "14.156", "4.24e-3"];
        first.into_iter().chain(spread).chain(["1.000"]).map(Cell::from).collect()
    };
    Table {
        caption: "As of a study".into(),
        titles: titles.map(String::from).to_vec(),
        rows: ["DPSGD", "FERRET-k, usual k, scalars"].map(row).to_vec(),
    }
}

/// Numbers whose texts sort otherwise, texts among them, and a cell with nothing.
fn kinds_of_cells() -> Table {
    let cells = ["10", "9.5 [9, 11]", "none", "-2", "1,000", "", "inf", "1e-3"];
    Table {
        caption: "Kinds".into(),
        titles: vec!["kind".into(), "name".into()],
        rows: cells
            .iter()
            .enumerate()
            .map(|(i, &cell)| vec![cell.into(), format!("FERRET-{}", 12 - i).into()])
            .collect(),
    }
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect()
}

fn check(found: &Value, look: Look) {
    assert_eq!(found["errors"], Value::Array(vec![]), "console");
    assert_eq!(found["fetched"], Value::Array(vec![]), "the page needs no other file");
    assert_eq!(found["width"], look.width);
    assert!(found["scrollWidth"].as_u64().unwrap() <= look.width.into(), "overflow: {}", found["outside"]);
    assert_eq!(found["outside"], Value::Array(vec![]), "what sticks out of the page");

    assert_eq!(found["sideways"], Value::Array(vec![]), "tables that scroll");
    // Two buttons a table, and one for everything.
    let saved = found["saved"].as_array().unwrap();
    assert_eq!(saved.len(), 2 * 7 + 1, "{saved:?}");
    assert!(saved.iter().all(|s| s[1].as_u64() > Some(20)), "{saved:?}");
    assert!(texts(&found["methods"]).contains(&"DPSGD"), "{}", found["methods"]);

    assert_eq!(found["dark"], look.dark);
    let paper = found["paper"].as_f64().unwrap();
    assert!(if look.dark { paper < 0.1 } else { paper > 0.8 }, "paper {paper}");
    for (key, least) in [("contrast", 7.0), ("plotText", 4.5), ("plotMarks", 3.0)] {
        let contrast = found[key].as_f64().unwrap();
        assert!(contrast >= least && contrast < 30.0, "{key} {contrast}");
    }

    let plots = found["plots"].as_array().unwrap();
    assert!(plots.len() >= 10, "{} plots", plots.len());
    for plot in plots {
        let size = |key: &str| plot[key].as_f64().unwrap();
        assert!(size("width") > 250.0 && size("height") > 100.0 && size("marks") >= 4.0, "{plot}");
        assert!(size("width") <= f64::from(look.width), "{plot}");
        assert!(size("smallest") >= 9.5, "text of {} pixels: {plot}", size("smallest"));
        assert_eq!(plot["cut"], Value::Array(vec![]), "cut off in {}", plot["title"]);
        assert_eq!(plot["over"], Value::Array(vec![]), "one over the other in {}", plot["title"]);
    }

    assert_eq!(found["statements"], 8);
    assert!(found["closed"] == true && found["opened"] == true);
    assert_eq!(found["links"], serde_json::json!(vec![true; 8]));
}

/// Sorting as the reader sees it; the first word of a cell is its number if it has one.
fn check_tables(found: &Value) {
    let tables = found["tables"].as_array().unwrap();
    // The methods, what they say after three prompts, the facts, and the kinds of cells.
    assert_eq!(tables.len(), 7);
    for table in tables {
        for column in table["columns"].as_array().unwrap() {
            assert_eq!(texts(&column["said"]), ["ascending", "descending"]);
            assert_eq!(column["others"], 0, "one column at a time");
            assert_eq!(column["focus"], true, "a key can reach it");
            let (mut before, mut up) = (texts(&column["before"]), texts(&column["up"]));
            let numbers: Vec<f64> = up.iter().filter_map(|t| Cell::from(*t).sort).collect();
            assert!(numbers.is_sorted(), "{column}");
            let numbers: Vec<f64> = texts(&column["down"]).iter().filter_map(|t| Cell::from(*t).sort).collect();
            assert!(numbers.iter().rev().is_sorted(), "{column}");
            before.sort_unstable();
            up.sort_unstable();
            assert_eq!(before, up, "no row is lost");
        }
    }
    let kinds = &tables[5]["columns"][0];
    assert_eq!(texts(&kinds["up"]), ["-2", "1e-3", "9.5 [9, 11]", "10", "1,000", "inf", "none", ""]);
    assert_eq!(texts(&kinds["down"]), ["inf", "1,000", "10", "9.5 [9, 11]", "1e-3", "-2", "none", ""]);
    let names: Vec<String> = (5..=12).map(|i| format!("FERRET-{i}")).collect();
    assert_eq!(texts(&tables[5]["columns"][1]["up"]), names, "numbers inside of names count");
}

#[test]
fn the_report_works_on_a_desk_and_on_a_phone_by_day_and_by_night() {
    let Some(browser) = chromium() else { return };
    if let Some(folder) = std::env::var_os("FERRET_BROWSER_KEEP").map(PathBuf::from) {
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("page.html");
        fs::write(&file, page()).unwrap();
        let file = fs::canonicalize(file).unwrap();
        for (name, width, height, dark) in
            [("desk-light", 1400, 5200, false), ("desk-dark", 1400, 5200, true), ("phone-light", 500, 9000, false)]
        {
            let shot = format!("--screenshot={}", folder.join(format!("{name}.png")).display());
            browse(&browser, &file, Look { width, dark }, height, &shot);
        }
    }
    for (width, dark) in [(1400, false), (1400, true), (390, false), (390, true)] {
        let look = Look { width, dark };
        let found = findings(&browser, page(), look);
        check(&found, look);
        check_tables(&found);
    }
}

/// The checks are worth something: a page with every fault is caught at each.
#[test]
fn faults_are_found() {
    let Some(browser) = chromium() else { return };
    let crowded =
        Chart::new("A title").x(Axis::linear("x")).series(Series::line("name", vec![(0.0, 0.0), (1.0, 1.0)])).svg();
    let crowded =
        crowded.replace("</svg>", "<text x=\"300\" y=\"20\">over</text><text x=\"305\" y=\"22\">under</text></svg>");
    let crowded = crowded.replace("</svg>", "<text x=\"430\" y=\"200\">cut off at the edge</text></svg>");
    let parts = vec![Part::Plots(vec![crowded]), Part::Table(kinds_of_cells())];
    let page = Page { title: "Faults".into(), intro: vec![], sections: vec![Section { parts, ..Section::default() }] };
    let html = render(&page)
        .replace("</main>", "<div style=\"width: 500px\">wide</div><img src=\"missing.png\" alt=\"\"></main>")
        .replace("const sign = up ? 1 : -1;", "const sign = 1;")
        .replace("<script>", "<script>console.error('a fault'); setTimeout(() => { throw new Error('another'); });");
    let look = Look { width: 375, dark: false };
    let found = findings(&browser, &html, look);
    let errors = found["errors"].to_string();
    assert!(errors.contains("a fault") && errors.contains("another"), "{errors}");
    assert!(found["fetched"].to_string().contains("missing.png"));
    assert!(found["scrollWidth"].as_u64().unwrap() > 375 && found["outside"].to_string().contains("wide"));
    assert_eq!(texts(&found["plots"][0]["over"]), ["over | under"]);
    assert_eq!(texts(&found["plots"][0]["cut"]), ["cut off at the edge"]);
    let kinds = &found["tables"][0]["columns"][0];
    assert_eq!(kinds["up"], kinds["down"], "this page does not sort downwards");
}
