//! The few hot loops: matrix products over matrixmultiply and rayon, vectorised exp and tanh.
