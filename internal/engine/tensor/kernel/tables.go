package kernel

// codeTable is a table of 16 values in units of the scale, as the kernels read it.
type codeTable struct {
	Values [16]int8
	plus   [16]uint8 // values + 128
}

func tableOf(values [16]int8) *codeTable {
	t := &codeTable{Values: values}
	for i, v := range values {
		t.plus[i] = uint8(int(v) + 128)
	}
	return t
}

// NonLinear holds the values of IQ4_NL, and Floats4 twice the values of MXFP4.
var (
	NonLinear = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
	Floats4   = [16]int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}
)

var Tables = [WeightTypes]*codeTable{IQ4_NL: tableOf(NonLinear), MXFP4: tableOf(Floats4)}

// Int4Scales is the bytes of 16 scales and 16 zero points of Int4.
const Int4Scales = 3 * PanelRows
