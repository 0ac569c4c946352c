//! The `ferret` program; see [`ferret::cli`].

fn main() {
    std::process::exit(ferret::cli::main());
}
