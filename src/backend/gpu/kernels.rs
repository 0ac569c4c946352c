//! The shaders: their sources, entry points and bindings, and the pipelines made of them.

/// An entry point of a shader.
pub(super) struct Kernel {
    /// The shader's file stem.
    pub(super) file: &'static str,
    source: &'static str,
    pub(super) entry: &'static str,
    /// Number of each storage binding, in the order in which arguments are given, and whether it is written to.
    pub(super) bindings: &'static [(u32, bool)],
}

/// Constants that are written in front of a shader.
pub(super) type Constants = &'static [&'static str];

macro_rules! kernels {
    ($($name:ident = $file:literal $entry:literal [$($binding:literal $access:ident),*];)*) => {
        $(pub(super) static $name: Kernel = Kernel {
            file: $file,
            source: include_str!(concat!("../../../shaders/", $file, ".wgsl")),
            entry: $entry,
            bindings: &[$(($binding, kernels!(@ $access))),*],
        };)*
        /// Every kernel.
        pub(super) static ALL: &[&Kernel] = &[$(&$name),*];
    };
    (@ read) => { false };
    (@ write) => { true };
}

kernels! {
    MATMUL = "linear" "matmul" [1 read, 2 read, 3 read, 4 write];
    MATVEC = "matvec" "vector" [1 read, 2 read, 3 read, 4 write];
    GATHER = "embedding" "gather" [1 read, 2 read, 3 write];
    SCATTER = "embedding" "scatter" [4 read, 5 read, 6 read, 7 read, 8 write];
    NORM = "norm" "forward" [1 read, 2 read, 3 read, 4 write, 5 write];
    NORM_BACKWARD = "norm" "backward" [1 read, 2 read, 6 read, 7 write, 8 write];
    NORM_JVP = "norm" "jvp" [1 read, 2 read, 6 read, 9 read, 10 read, 11 read, 4 write];
    ACTIVATION = "activation" "forward" [1 read, 2 write];
    ACTIVATION_BACKWARD = "activation" "backward" [1 read, 2 write];
    ADD = "residual" "add" [1 read, 2 write];
    ADD_VECTOR = "residual" "add_vector" [1 read, 2 write];
    CROSS_ENTROPY = "cross_entropy" "forward" [1 read, 2 read, 3 write];
    CROSS_ENTROPY_BACKWARD = "cross_entropy" "backward" [2 read, 3 write, 4 read, 5 write];
    CROSS_ENTROPY_JVP = "cross_entropy" "jvp" [1 read, 2 read, 3 write, 6 read];
    TOKEN_STATS = "token_stats" "forward" [1 read, 2 read, 3 write];
    COLUMNS = "reduce" "columns" [1 read, 2 write];
    ROW_DOTS = "reduce" "row_dots" [1 read, 3 read, 2 write];
    ATTENTION = "attention" "forward" [1 read, 2 read, 3 read, 4 read, 5 write, 6 write];
    ATTENTION_DELTAS = "attention" "row_deltas" [2 read, 7 read, 8 read, 6 write];
    ATTENTION_QUERIES = "attention" "backward_queries" [1 read, 2 read, 3 read, 4 read, 8 read, 9 read, 5 write];
    ATTENTION_KEYS = "attention" "backward_keys" [1 read, 2 read, 3 read, 4 read, 8 read, 9 read, 5 write];
    ATTENTION_JVP = "attention" "jvp" [1 read, 2 read, 3 read, 4 read, 7 read, 10 read, 5 write];
    RMS_NORM = "rms_norm" "forward" [1 read, 2 read, 3 write, 4 write];
    RMS_NORM_BACKWARD = "rms_norm" "backward" [1 read, 2 read, 5 read, 3 write, 6 write];
    RMS_NORM_JVP = "rms_norm" "jvp" [1 read, 2 read, 5 read, 7 read, 8 read, 3 write];
    FOLD = "rms_norm" "fold" [1 read, 3 write];
    ROPE = "rope" "turn" [1 write, 2 read];
    GATED = "gated" "forward" [1 read, 2 read, 3 write];
    GATED_BACKWARD_GATE = "gated" "backward_gate" [1 read, 2 read, 3 write, 4 read];
    GATED_BACKWARD_UP = "gated" "backward_up" [1 read, 3 write, 4 read];
    GATED_JVP = "gated" "jvp" [1 read, 2 read, 3 write, 4 read, 5 read];
    SAMPLE_GRAM = "sample_norm" "gram" [1 read, 2 read, 3 read, 4 write];
    SAMPLE_SQUARES = "sample_norm" "squares" [1 read, 2 read, 3 read, 4 write];
    SAMPLE_TIED = "sample_norm" "tied" [1 read, 2 read, 3 read, 5 read, 6 read, 4 write];
    SAMPLE_ROWS = "sample_norm" "rows" [1 read, 7 read, 8 read, 4 write];
    COLLECT = "sample_norm" "collect" [7 read, 9 read, 10 write];
    SAMPLE_MASSES = "sample_norm" "masses" [1 read, 2 read, 4 write];
    COLLECT_MASSES = "sample_norm" "collect_masses" [7 read, 9 read, 11 read, 10 write];
    SEGMENT_SUMS = "sample_norm" "sums" [1 read, 7 read, 10 write];
    NORM_BOUNDS = "clip" "bounds" [1 write, 4 read];
    CLIP_FACTORS = "clip" "factors" [1 write];
    CLIP_ROWS = "clip" "rows" [1 write, 2 read, 3 read];
    DIRECTION = "direction" "fill" [1 write];
    DIRECTION_ROWS = "direction" "rows" [1 write, 2 read];
    SKETCH_FOLD = "sketch" "fold" [1 read, 2 read, 3 read, 4 write];
    SKETCH_HASH = "sketch" "hash" [1 read, 2 read, 3 read, 4 write, 5 read];
    SKETCH_PULL = "sketch" "pull" [4 write, 5 read, 6 read, 7 read];
    SKETCH_PULL_COUNT = "sketch" "pull_count" [4 write, 7 read];
    ADAMW = "update" "adamw" [1 write, 2 write, 3 write, 4 read];
    ADAMW_IDLE = "update" "idle" [1 write, 2 write, 3 write, 5 read];
    DECAY = "update" "decay" [1 write, 5 read];
    SUBTRACT = "update" "subtract" [1 write, 4 read];
    SIGNS = "compress" "signs" [1 write, 2 write, 3 read];
    SIZES = "compress" "sizes" [1 write, 2 write];
    QUANTISE = "compress" "quantise" [1 write];
    ATTENTION_STORE = "attention" "store" [2 read, 5 write];
}

const COMMON: &str = include_str!("../../../shaders/common.wgsl");
const WORKGROUP: &str = include_str!("../../../shaders/workgroup.wgsl");
const CHACHA: &str = include_str!("../../../shaders/chacha.wgsl");
const CURVE: &str = include_str!("../../../shaders/curve.wgsl");
const ELEMENTWISE: &str = include_str!("../../../shaders/elementwise.wgsl");
const ATTENTION_TILES: &str = include_str!("../../../shaders/attention_tiles.wgsl");

impl Kernel {
    /// The names of the constants that go in front of this shader.
    pub(super) fn constants(&self) -> Constants {
        match self.file {
            "linear" => &["TRANSPOSED_A", "TRANSPOSED_B", "SHIFTED_A"],
            "matvec" => &["TRANSPOSED_B"],
            "activation" | "gated" | "direction" => &["KIND"],
            "attention" => &["WIDTH", "BLOCK", "TILES"],
            _ => &[],
        }
    }

    /// What goes in front of this shader beside what every shader has.
    fn shared(&self) -> &'static [&'static str] {
        match self.file {
            "norm" | "rms_norm" | "cross_entropy" | "token_stats" | "reduce" | "sample_norm" => &[WORKGROUP],
            "activation" => &[CURVE, ELEMENTWISE],
            "gated" => &[CURVE],
            "residual" => &[ELEMENTWISE],
            "attention" => &[ATTENTION_TILES],
            "compress" => &[WORKGROUP, CHACHA],
            "direction" | "sketch" => &[CHACHA],
            _ => &[],
        }
    }

    /// The whole text that is compiled, with `values` for [`Kernel::constants`].
    pub(super) fn text(&self, values: &[u32]) -> String {
        let names = self.constants();
        assert_eq!(names.len(), values.len(), "constants of {}.wgsl", self.file);
        let mut text: String = names.iter().zip(values).map(|(n, v)| format!("const {n}: u32 = {v}u;\n")).collect();
        text.push_str(COMMON);
        self.shared().iter().for_each(|shared| text.push_str(shared));
        text.push_str(self.source);
        text
    }
}

/// Every shader as it is compiled: file stem, constants, text. For validation without a device.
pub fn sources() -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for kernel in ALL {
        let variants: Vec<Vec<u32>> = match kernel.file {
            "linear" => (0..8).map(|i| vec![i & 1, i >> 1 & 1, i >> 2]).collect(),
            "activation" | "gated" => vec![vec![0], vec![1], vec![2]],
            "direction" | "matvec" => vec![vec![0], vec![1]],
            "attention" => [(1, 8), (5, 32), (8, 16), (64, 32), (64, 16), (80, 16), (128, 16), (256, 8)]
                .into_iter()
                .flat_map(|(width, block)| [2, 4].map(|tiles| vec![width, block, tiles]))
                .collect(),
            _ => vec![vec![]],
        };
        for values in variants {
            let name = format!("{} {values:?}", kernel.file);
            if all.iter().all(|(known, _)| *known != name) {
                all.push((name, kernel.text(&values)));
            }
        }
    }
    all
}
