// Vercel's AI SDK: text, streams, tools over two steps and objects, by two providers.
import { generateText, streamText, tool, Output, stepCountIs } from 'ai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { createAnthropic } from '@ai-sdk/anthropic'
import { z } from 'zod'
import { check, end, MODEL, QUESTION, SERVER } from './check.mjs'

const models = {
  '@ai-sdk/openai-compatible': createOpenAICompatible({ name: 'shoal', baseURL: `${SERVER}/v1`, includeUsage: true, supportsStructuredOutputs: true })(MODEL),
  '@ai-sdk/anthropic': createAnthropic({ baseURL: `${SERVER}/v1`, apiKey: 'none' })(MODEL),
}
const common = { maxRetries: 0, maxOutputTokens: 300 }
const weather = (asked) =>
  tool({
    description: 'The weather in a city.',
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      asked.push(city)
      return { sky: 'rain', degrees: 3 }
    },
  })
const person = z.object({ name: z.string(), age: z.number().int() })

for (const [name, model] of Object.entries(models)) {
  await check('ai', name + ' generateText', async () => {
    const r = await generateText({ model, prompt: 'Say hello.', ...common })
    return r.text !== '' && ['stop', 'length'].includes(r.finishReason) && r.usage.outputTokens > 0
  })
  await check('ai', name + ' streamText', async () => {
    const r = streamText({ model, prompt: 'Say hello.', ...common })
    let text = ''
    for await (const part of r.textStream) text += part
    return text !== '' && (await r.usage).outputTokens > 0
  })
  await check('ai', name + ' tools over two steps', async () => {
    const asked = []
    const r = await generateText({ model, prompt: QUESTION, tools: { get_weather: weather(asked) }, stopWhen: stepCountIs(3), ...common })
    return r.text.includes('rain') && asked.join() === 'Oslo' && r.steps.length === 2
  })
  await check('ai', name + ' tools, streamed', async () => {
    const asked = []
    const r = streamText({ model, prompt: QUESTION, tools: { get_weather: weather(asked) }, stopWhen: stepCountIs(3), ...common })
    return (await r.text).includes('rain') && asked.join() === 'Oslo'
  })
  await check('ai', name + ' Output.object', async () => {
    const r = await generateText({ model, prompt: 'name: John; age: 30', output: Output.object({ schema: person }), ...common })
    return typeof r.output.name === 'string' && Number.isInteger(r.output.age)
  })
}
end()
