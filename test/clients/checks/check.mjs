// Functions that the checks of both npm clients share: one line of output for each check, and the exit
// code.
import { readFileSync } from 'node:fs'

export const SERVER = process.env.SHOAL_URL
export const MODEL = 'fry-tools'
export const QUESTION = 'What is the weather in Oslo?'

let failures = 0

const version = (name) => JSON.parse(readFileSync(new URL(`../node_modules/${name}/package.json`, import.meta.url))).version

// check runs one check. It fails by an exception or by a value that is not true.
export async function check(client, name, run) {
  let reason
  try {
    const got = await run()
    if (got !== true) reason = `got ${JSON.stringify(got)}`
  } catch (e) {
    reason = `${e.name}: ${e.message}`
  }
  if (reason === undefined) {
    console.log(`ok   ${client} ${version(client)} ${name}`)
  } else {
    failures++
    console.log(`FAIL ${client} ${version(client)} ${name}: ${reason.replace(/\s+/g, ' ').slice(0, 300)}`)
  }
}

export function end() {
  process.exit(failures > 0 ? 1 : 0)
}
