package kernel

// Sizes that kernels share with the canonical arithmetic. They determine every result's bits.
const (
	PanelRows  = 16 // rows of a matrix that are adjacent in memory, column by column
	GroupRows  = MaxTilePanels * PanelRows
	BlockWidth = 32 // elements of a contraction axis that are never split
	BlockSlots = 64 // cache slots per attention block
)
