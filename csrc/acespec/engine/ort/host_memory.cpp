#include "acespec/engine/ort/host_memory.h"

namespace acespec::ort {

HostMemory::HostMemory() {
  table_.version = kApi;
  table_.Alloc = [](OrtAllocator* table, std::size_t bytes) { return of(table).pages_.take(bytes); };
  table_.Free = [](OrtAllocator* table, void* block) { of(table).pages_.give_back(block); };
  table_.Info = [](const OrtAllocator* table) -> const OrtMemoryInfo* { return of(table).info_; };
  table_.Reserve = table_.Alloc;
  table_.owner = this;
}

void HostMemory::serve(Ort::Env& environment) {
  Ort::ThrowOnError(Ort::GetApi().RegisterAllocator(environment, &table_));
}

}  // namespace acespec::ort
