'use strict';

// A client of opferry.v1.OperatorService that knows nothing but the .proto files.
//
// usage: node client.js JOB.json
//
// The job:
//   target         "host:port"
//   protos         the folder of the schema
//   mode           "unary" or "stream"
//   attributes     of ApplyRotaryPosEmbGrad, for example {"rotary_mode": 1, "layout": 4}
//   inputs         a list of {"spec": TensorSpec, "file": path of the raw bytes}
//   output_folder  where each output's raw bytes go, as NAME.bin
//   chunk_bytes    the size of the chunks that are sent in a stream
//
// The summary, one line of JSON on standard output, has the outputs' specs, the execution and, for
// a stream, the states it went through; or the code, text and details of an error, with exit
// status 1.

const { once } = require('node:events');
const fs = require('node:fs');
const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

function connect(job) {
  const definition = loader.loadSync('opferry/v1/operator_service.proto', {
    includeDirs: [job.protos],
    keepCase: true,
    longs: String, // a JavaScript number cannot hold every int64
    enums: String,
    defaults: true,
    oneofs: true,
  });
  const { OperatorService } = grpc.loadPackageDefinition(definition).opferry.v1;
  return new OperatorService(job.target, grpc.credentials.createInsecure());
}

function unary(client, job, inputs) {
  const request = { attributes: job.attributes };
  for (const { spec, data } of inputs) {
    request[spec.name] = { spec, data };
  }
  return new Promise((resolve, reject) => {
    client.ApplyRotaryPosEmbGrad(request, (error, response) => {
      if (error) {
        reject(error);
        return;
      }
      const { execution, ...tensors } = response;
      const present = Object.values(tensors).filter((tensor) => tensor !== null);
      const outputs = present.map(({ spec, data }) => ({ spec, data }));
      resolve({ outputs, execution, states: [] });
    });
  });
}

async function upload(call, inputs, chunkBytes) {
  for (const [index, { data }] of inputs.entries()) {
    for (let offset = 0; offset < data.length; offset += chunkBytes) {
      const chunk = {
        tensor_index: index,
        offset_bytes: String(offset),
        data: data.subarray(offset, offset + chunkBytes),
      };
      if (!call.write({ chunk })) {
        await once(call, 'drain');
      }
    }
  }
  call.end();
}

function place(chunk, outputs) {
  const output = outputs[chunk.tensor_index];
  if (Number(chunk.offset_bytes) !== output.received) {
    throw new Error(`a gap or an overlap in ${output.spec.name} at ${chunk.offset_bytes}`);
  }
  output.received += chunk.data.copy(output.data, output.received);
}

async function stream(client, job, inputs) {
  const call = client.Execute();
  const header = { inputs: inputs.map(({ spec }) => spec) };
  call.write({ header: { ...header, apply_rotary_pos_emb_grad: job.attributes } });
  const states = [];
  let uploading = null;
  let execution = null;
  let outputs = [];
  for await (const message of call) {
    if (message.frame === 'progress') {
      states.push(message.progress.state);
      if (message.progress.state === 'STATE_UPLOADING') {
        uploading = upload(call, inputs, job.chunk_bytes);
        uploading.catch(() => {}); // the stream's own error says why
      }
    } else if (message.frame === 'result') {
      execution = message.result.execution;
      outputs = message.result.outputs.map((spec) => {
        return { spec, data: Buffer.alloc(Number(spec.data_bytes)), received: 0 };
      });
    } else {
      place(message.chunk, outputs);
    }
  }
  await uploading;
  const short = outputs.find(({ data, received }) => received !== data.length);
  if (execution === null || short) {
    throw new Error('the stream ended before the result was whole');
  }
  return { outputs, execution, states };
}

async function main() {
  const job = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));
  const inputs = job.inputs.map(({ spec, file }) => ({ spec, data: fs.readFileSync(file) }));
  const client = connect(job);
  try {
    const call = { unary, stream }[job.mode];
    const { outputs, execution, states } = await call(client, job, inputs);
    for (const { spec, data } of outputs) {
      fs.writeFileSync(path.join(job.output_folder, `${spec.name}.bin`), data);
    }
    return { outputs: outputs.map(({ spec }) => spec), execution, states };
  } catch (error) {
    if (error.code === undefined || error.metadata === undefined) {
      throw error;
    }
    const [details] = error.metadata.get('grpc-status-details-bin');
    process.exitCode = 1;
    return {
      code: grpc.status[error.code],
      text: error.details,
      details: details === undefined ? null : details.toString('base64'),
    };
  } finally {
    client.close();
  }
}

main().then((summary) => console.log(JSON.stringify(summary)));
