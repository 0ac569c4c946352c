//! What a group and a bit are, as a drawing.

use super::page::{document, heading, identity};
use std::fmt::Write;

/// A model's tensors in groups, one of which fires: its public direction, the sign that is released, the step that follows.
pub fn group_and_bit() -> String {
    let (mut body, _) = heading("What a group and a bit are");
    let blocks = ["embeddings", "block 0", "block 1", "block 2", "top"];
    for (i, name) in blocks.iter().enumerate() {
        let (y, fires) = (44.0 + 38.0 * i as f64, i == 2);
        let class = if fires { "fp-c0" } else { "fp-muted" };
        let fill = if fires { "fp-b" } else { "fp-paper" };
        let _ = writeln!(
            body,
            "<g class=\"{class}\"><rect class=\"{fill}\" x=\"12\" y=\"{y}\" width=\"112\" height=\"30\" rx=\"4\"/><rect class=\"fp-x\" x=\"12\" \
             y=\"{y}\" width=\"112\" height=\"30\" rx=\"4\"/></g><text class=\"fp-m\" x=\"68\" y=\"{}\">{name}</text>",
            y + 20.0
        );
    }
    let arrow = |class: &str, from: (f64, f64), to: (f64, f64)| {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy);
        let (ux, uy) = (dx / length, dy / length);
        let wing = |side: f64| (to.0 - 9.0 * ux - side * 4.0 * uy, to.1 - 9.0 * uy + side * 4.0 * ux);
        let ((ax, ay), (bx, by)) = (wing(1.0), wing(-1.0));
        format!(
            "<g class=\"{class}\"><path class=\"fp-l\" d=\"M{} {}L{} {}\"/><path class=\"fp-p\" d=\"M{} {}L{ax:.1} {ay:.1}L{bx:.1} {by:.1}z\"/></g>\n",
            from.0, from.1, to.0, to.1, to.0, to.1
        )
    };
    body += &arrow("fp-muted", (128.0, 135.0), (168.0, 135.0));
    // The plane of a group's gradient: u is public, g is not.
    body += &arrow("fp-c0", (190.0, 178.0), (262.0, 102.0));
    body += &arrow("fp-c1", (190.0, 178.0), (280.0, 152.0));
    body += &arrow("fp-muted", (286.0, 135.0), (310.0, 135.0));
    for (class, x, y, text) in [
        ("", 232.0, 92.0, "u: public, drawn from a seed"),
        ("", 214.0, 200.0, "g: the batch's gradient,"),
        ("", 214.0, 216.0, "never released"),
        ("fp-h", 318.0, 130.0, "sign \u{27e8}g, u\u{27e9}:"),
        ("fp-h", 318.0, 150.0, "one bit"),
        ("", 318.0, 176.0, "step: \u{2213} rate \u{b7} u"),
    ] {
        let _ = writeln!(body, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>");
    }
    let description = "A model's tensors lie in groups. One group fires: a public random direction u and the secret gradient g give one sign, \
                       which is released, and the group moves along u.";
    document(&identity(&body), 252.0, "What a group and a bit are", description, &body)
}
