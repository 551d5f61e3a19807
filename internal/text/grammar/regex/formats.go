package regex

// Formats has the string formats that are enforced. Any other format is an annotation, as in JSON
// Schema 2020-12.
var Formats = map[string]string{
	"date":      date,
	"time":      clock,
	"date-time": date + `[tT]` + clock,
	"duration":  `P(?:\d{1,9}W|(?:\d{1,9}Y(?:\d{1,9}M(?:\d{1,9}D)?)?|\d{1,9}M(?:\d{1,9}D)?|\d{1,9}D)(?:T` + hms + `)?|T` + hms + `)`,
	"email":     atomText + `+(?:\.` + atomText + `+)*@(?:` + label + `(?:\.` + label + `)*|\[` + ipv4 + `\])`,
	"hostname":  shortLabel + `(?:\.` + shortLabel + `)*`,
	"ipv4":      ipv4,
	"ipv6":      ipv6,
	"uuid":      `[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}`,
	"uri":       `[a-zA-Z][a-zA-Z0-9+\-.]*:` + hier + `(?:\?` + query + `)?(?:#` + query + `)?`,

	"uri-reference": `(?:[a-zA-Z][a-zA-Z0-9+\-.]*:` + hier + `|//` + authority + pathAbs + `|/(?:` + pchar + `+` + pathAbs + `)?|` +
		pcharNoColon + `+` + pathAbs + `|)(?:\?` + query + `)?(?:#` + query + `)?`,
	"json-pointer":          `(?:/(?:[^~/]|~[01])*)*`,
	"relative-json-pointer": `(?:0|[1-9][0-9]{0,8})(?:#|(?:/(?:[^~/]|~[01])*)*)`,
	"unknown":               `(?s:.*)`,
}

const (
	date = `(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))` +
		`|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)`
	// Leap seconds are excluded, because their validity is not regular.
	clock = `(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])`
	hms   = `(?:\d{1,9}H(?:\d{1,9}M(?:\d{1,9}S)?)?|\d{1,9}M(?:\d{1,9}S)?|\d{1,9}S)`
	octet = `(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])`
	ipv4  = `(?:` + octet + `\.){3}` + octet
	h16   = `[0-9a-fA-F]{1,4}`
	ls32  = `(?:` + h16 + `:` + h16 + `|` + ipv4 + `)`
	ipv6  = `(?:(?:` + h16 + `:){6}` + ls32 + `|::(?:` + h16 + `:){5}` + ls32 + `|(?:` + h16 + `)?::(?:` + h16 + `:){4}` + ls32 +
		`|(?:(?:` + h16 + `:){0,1}` + h16 + `)?::(?:` + h16 + `:){3}` + ls32 + `|(?:(?:` + h16 + `:){0,2}` + h16 + `)?::(?:` + h16 + `:){2}` +
		ls32 + `|(?:(?:` + h16 + `:){0,3}` + h16 + `)?::` + h16 + `:` + ls32 + `|(?:(?:` + h16 + `:){0,4}` + h16 + `)?::` + ls32 + `|(?:(?:` +
		h16 + `:){0,5}` + h16 + `)?::` + h16 + `|(?:(?:` + h16 + `:){0,6}` + h16 + `)?::)`
	label        = `[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?`
	pct          = `%[0-9a-fA-F]{2}`
	unsub        = `a-zA-Z0-9\-._~!$&'()*+,;=`
	pchar        = `(?:[` + unsub + `:@]|` + pct + `)`
	query        = `(?:[` + unsub + `:@/?]|` + pct + `)*`
	pathAbs      = `(?:/` + pchar + `*)*`
	pcharNoColon = `(?:[` + unsub + `@]|` + pct + `)`
	authority    = `(?:(?:[` + unsub + `:]|` + pct + `)*@)?(?:\[(?:` + ipv6 + `|v[0-9a-fA-F]+\.[` + unsub +
		`:]+)\]|(?:[` + unsub + `]|` + pct + `)*)(?::[0-9]*)?`
	hier = `(?://` + authority + pathAbs + `|/(?:` + pchar + `+` + pathAbs + `)?|` + pchar + `+` + pathAbs + `|)`

	shortLabel = `[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?`
	atomText   = "[a-zA-Z0-9!#$%&'*+\\-/=?^_`{|}~]"
)
