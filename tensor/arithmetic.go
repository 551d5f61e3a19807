package tensor

// Arithmetic is the version of docs/decisions/canonical-arithmetic.md: of the order of
// operations that decides every bit. A change that moves a bit of any answer raises it;
// processes of different versions do not work together.
const Arithmetic = 1
