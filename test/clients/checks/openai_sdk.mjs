// The openai package of npm: chats, streams, tools, responses.
import OpenAI from 'openai'
import { zodResponseFormat } from 'openai/helpers/zod'
import { z } from 'zod'
import { check, end, MODEL, QUESTION, SERVER } from './check.mjs'

const client = new OpenAI({ baseURL: `${SERVER}/v1`, apiKey: 'none', maxRetries: 0 })
const parameters = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }
const messages = [{ role: 'user', content: QUESTION }]
const called = (name, text) => name === 'get_weather' && JSON.stringify(JSON.parse(text)) === '{"city":"Oslo"}'

await check('openai', 'chat, streamed', async () => {
  let text = ''
  for await (const chunk of await client.chat.completions.create({ model: MODEL, messages, max_tokens: 16, stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? ''
  }
  return text !== ''
})
await check('openai', 'tools', async () => {
  const tools = [{ type: 'function', function: { name: 'get_weather', description: 'The weather in a city.', parameters } }]
  const c = (await client.chat.completions.create({ model: MODEL, messages, tools })).choices[0]
  const f = c.message.tool_calls[0].function
  return c.finish_reason === 'tool_calls' && called(f.name, f.arguments)
})
await check('openai', 'chat.parse', async () => {
  const response_format = zodResponseFormat(z.object({ name: z.string(), age: z.number().int() }), 'person')
  const c = (await client.chat.completions.parse({ model: MODEL, messages, response_format, max_tokens: 300 })).choices[0]
  return Number.isInteger(c.message.parsed.age)
})
await check('openai', 'responses', async () => {
  const r = await client.responses.create({ model: MODEL, input: 'Say hello.', max_output_tokens: 16 })
  return r.output_text !== ''
})
await check('openai', 'responses with tools, streamed', async () => {
  const tools = [{ type: 'function', name: 'get_weather', description: 'The weather in a city.', parameters, strict: false }]
  let found = false
  for await (const e of await client.responses.create({ model: MODEL, input: QUESTION, tools, stream: true })) {
    if (e.type === 'response.output_item.done' && e.item.type === 'function_call') found = called(e.item.name, e.item.arguments)
  }
  return found
})
end()
