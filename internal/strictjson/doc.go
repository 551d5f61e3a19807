// Package strictjson decodes the JSON of clients: requests, lines of batches, jobs. It differs from
// encoding/json in three points:
//
//   - Names of members match exactly. encoding/json ignores case, so a filter in front of
//     the server could see another text than the model.
//   - Check refuses an object with two members of the same name.
//   - An integer may have a fraction of zeros or an exponent: 5.0 and 5e0 are 5.
//
// Errors name a place in the document, such as messages[0].content, and no Go type.
package strictjson
