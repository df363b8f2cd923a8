// Confluent's and KafkaJS's clients of the schema registry: node registry_clients.mjs URL CLIENT FORMAT.
import { createRequire } from "node:module";
const require = createRequire(process.env.NODE_MODULES_OF + "/");
const assert = require("node:assert");
const [url, client, format] = process.argv.slice(2);
const avro = '{"type":"record","name":"Flight","namespace":"air","fields":[{"name":"carrier","type":"string"}]}';
const json = '{"$id":"http://x/flight","title":"Flight","type":"object","properties":{"carrier":{"type":"string"}}}';
const proto = 'syntax = "proto3";\npackage air;\nmessage Flight {\n  string carrier = 1;\n}\n';
const text = { AVRO: avro, JSON: json, PROTOBUF: proto }[format];
const subject = `${client}-${format}-value`;
const value = { carrier: "UA" };

if (client === "kafkajs") {
  const { SchemaRegistry } = require("@kafkajs/confluent-schema-registry");
  const registry = new SchemaRegistry({ host: url });
  const { id } = await registry.register({ type: format, schema: text }, { subject });
  const data = await registry.encode(id, value);
  const read = await new SchemaRegistry({ host: url }).decode(data);
  assert.strictEqual(read.carrier, "UA");
} else {
  const sr = require("@confluentinc/schemaregistry");
  const registry = new sr.SchemaRegistryClient({ baseURLs: [url] });
  const topic = `${client}-${format}`;
  const kinds = {
    AVRO: [sr.AvroSerializer, sr.AvroDeserializer],
    JSON: [sr.JsonSerializer, sr.JsonDeserializer],
    PROTOBUF: [sr.ProtobufSerializer, sr.ProtobufDeserializer],
  };
  const [Serializer, Deserializer] = kinds[format];
  const id = await registry.register(subject, { schemaType: format, schema: text });
  assert.strictEqual((await registry.getLatestSchemaMetadata(subject)).id, id);
  if (format === "PROTOBUF") {
    const { createFileRegistry, create, fromBinary } = require("@bufbuild/protobuf");
    const { FileDescriptorProtoSchema } = require("@bufbuild/protobuf/wkt");
    const { schema } = await registry.getBySubjectAndId(subject, id, "serialized");
    const file = fromBinary(FileDescriptorProtoSchema, Buffer.from(schema, "base64"));
    file.name = "flight.proto";
    const types = createFileRegistry(file, () => undefined);
    const Flight = types.getMessage("air.Flight");
    const { createMutableRegistry } = require("@bufbuild/protobuf");
    const known = createMutableRegistry(Flight);
    const serializer = new Serializer(registry, sr.SerdeType.VALUE, { registry: known, autoRegisterSchemas: true });
    const data = await serializer.serialize(topic, create(Flight, value));
    const read = await new Deserializer(registry, sr.SerdeType.VALUE, {}).deserialize(topic, data);
    assert.strictEqual(read.carrier, "UA");
  } else {
    const serializer = new Serializer(registry, sr.SerdeType.VALUE, { useLatestVersion: true });
    const data = await serializer.serialize(topic, value);
    const read = await new Deserializer(registry, sr.SerdeType.VALUE, {}).deserialize(topic, data);
    assert.strictEqual(read.carrier, "UA");
  }
}
console.log("done");
